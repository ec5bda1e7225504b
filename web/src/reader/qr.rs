//! A link as a QR code.

use qrcodegen::{QrCode, QrCodeEcc};

/// Modules around a code that stay light, as readers need them (ISO/IEC 18004: 4).
const QUIET: i32 = 4;

/// The most characters that a code holds, of bytes and with the least correction (ISO/IEC 18004, version 40-L).
pub const MOST_CHARS: usize = 2953;

/// A QR code of `text`, as the side of its square and the path of its dark modules in SVG; none where the text is too long.
pub fn qr_code(text: &str) -> Option<(i32, String)> {
    let code = QrCode::encode_text(text, QrCodeEcc::Low).ok()?;
    let mut path = String::new();
    for y in 0..code.size() {
        let mut x = 0;
        while x < code.size() {
            let run = (x..code.size()).take_while(|x| code.get_module(*x, y)).count() as i32;
            if run > 0 {
                path.push_str(&format!("M{} {}h{run}v1h-{run}z", x + QUIET, y + QUIET));
            }
            x += run.max(1);
        }
    }
    Some((code.size() + 2 * QUIET, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_corner_marks_and_quiet_margin() {
        let (side, path) = qr_code("https://example.org/#v1.rABC").unwrap();
        // Version 2 has 25 modules (ISO/IEC 18004), and a link of 28 characters needs it.
        assert_eq!(side, 25 + 2 * QUIET);
        // The mark at the top left: seven dark modules in its first row.
        assert!(path.starts_with("M4 4h7v1h-7z"), "{path}");
        // Nothing is drawn in the margin.
        let places = path.split('M').skip(1).map(|run| {
            let (x, rest) = run.split_once(' ').unwrap();
            let (y, rest) = rest.split_once('h').unwrap();
            let (run, _) = rest.split_once('v').unwrap();
            [x, y, run].map(|number| number.parse::<i32>().unwrap())
        });
        for [x, y, run] in places {
            assert!(x >= QUIET && y >= QUIET && x + run <= side - QUIET && y < side - QUIET, "{x} {y} {run}");
        }
    }

    #[test]
    fn what_no_code_holds_has_none() {
        assert!(qr_code(&"a".repeat(MOST_CHARS)).is_some());
        assert_eq!(qr_code(&"a".repeat(MOST_CHARS + 1)), None);
    }
}
