//! Numbers with their units as a person reads them.

/// The tooltip of MFU.
pub const MFU: &str = "Model FLOPs utilization: see How to read this";

/// A duration with three or four significant digits: `12.35 ms`.
pub fn duration(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        ns_abs if ns_abs < 999.5 => return format!("{} ns", trimmed(ns, 1)),
        ns_abs if ns_abs < 999.95e3 => (ns / 1e3, "µs"),
        ns_abs if ns_abs < 999.95e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// Whether a duration is less than another, and reads so.
pub fn is_less(ns: u64, than_ns: u64) -> bool {
    ns < than_ns && duration(ns as f64) != duration(than_ns as f64)
}

/// An amount of memory in binary units: `12.4 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", significant(value), UNITS[unit])
}

/// A share as a percentage: `27.3 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    // A bubble of 0.004 % is not none.
    if percent > 0.0 && percent < 0.05 { format!("{} %", trimmed(percent, 3)) } else { format!("{percent:.1} %") }
}

/// Model FLOPs utilisation. Above 100 % it is of another device than the one that was measured.
pub fn mfu(share: f64) -> String {
    if share > 1.0 { "over 100 %".to_owned() } else { percent(share) }
}

/// How much more or less than `of`.
pub fn change(ns: u64, of: u64) -> String {
    let share = ns as f64 / of.max(1) as f64 - 1.0;
    match ns.cmp(&of) {
        core::cmp::Ordering::Equal => "0".to_owned(),
        core::cmp::Ordering::Greater => format!("+{:.2} %", 100.0 * share),
        core::cmp::Ordering::Less => format!("−{:.2} %", -100.0 * share),
    }
}

/// A whole number with thin gaps between groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// `1 core`, `2 cores`: a number with its noun.
pub fn counted(number: usize, thing: &str) -> String {
    let end = match number {
        1 => "",
        _ if thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {thing}{end}")
}

/// Three to four digits, whatever the size.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 1,
        value if value >= 10.0 => 2,
        _ => 3,
    };
    trimmed(value, decimals)
}

/// At most `decimals` places, without trailing zeros.
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// The difference of an amount of memory to another: `−10 GiB`.
pub fn bytes_change(amount: u64, of: u64) -> String {
    match amount.cmp(&of) {
        core::cmp::Ordering::Equal => "same".to_owned(),
        core::cmp::Ordering::Greater => format!("+{}", bytes(amount - of)),
        core::cmp::Ordering::Less => format!("−{}", bytes(of - amount)),
    }
}

/// The difference of a share to another, in points of a percentage: `+3.2 pp`.
pub fn share_change(share: f64, of: f64) -> String {
    let points = 100.0 * (share - of);
    match points {
        points if points.abs() < 0.05 => "same".to_owned(),
        points if points > 0.0 => format!("+{points:.1} pp"),
        points => format!("−{:.1} pp", -points),
    }
}

/// The difference of a duration, or of a rate, to another, in three digits: `+28 %`.
pub fn rate_change(value: f64, of: f64) -> String {
    let percent = 100.0 * (value / of.max(f64::MIN_POSITIVE) - 1.0);
    let decimals = if percent.abs() >= 10.0 { 0 } else { 1 };
    match percent {
        percent if percent.abs() < 0.05 => "same".to_owned(),
        percent if percent > 0.0 => format!("+{percent:.decimals$} %"),
        percent => format!("−{:.decimals$} %", -percent),
    }
}
