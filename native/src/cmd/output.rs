//! Where output goes: standard output, or a file that is written completely or not at all.

use std::io::{BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use pipeplan_core::formats::events::Sink;
use pipeplan_core::plan::{self, Plan};
use pipeplan_core::trace::Trace;
use serde_json::Value;

use super::failure::Failure;

/// Prints a text, colours and all where the terminal shows them.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints bytes as they are.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    unless_closed(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Prints a value as JSON for programs.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print_bytes(pipeplan_core::base::canonical::pretty(value).as_bytes())
}

/// The file of a plan, if its size is within the limit of plan files.
pub fn plan_file(plan: &Plan) -> Result<String, Failure> {
    let text = plan.to_json();
    if text.len() > plan::MAX_FILE_BYTES {
        let (bytes, most) = (text.len() >> 20, plan::MAX_FILE_BYTES >> 20);
        return Err(Failure::input(format!("the plan has {bytes} MiB; the limit of a plan file is {most} MiB"))
            .with_help("use fewer microbatches, chunks or ranks; `pipeplan compare` needs no file"));
    }
    Ok(text)
}

/// Prints a line on standard error, if anybody still reads that.
pub fn tell(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// A reader that has seen enough, such as `head`, is no failure.
fn unless_closed(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::work(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a file, or standard output for `-`. A file is written next to its place and renamed, so that nobody
/// ever sees half of it.
pub fn write(path: &str, bytes: &[u8]) -> Result<(), Failure> {
    write_pieces(path, |sink| {
        let _ = sink(bytes);
        Ok(())
    })
}

/// As [`write`], of what `make` hands to its sink piece by piece: for files that are longer than memory.
pub fn write_pieces(path: &str, make: impl FnOnce(Sink<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
    if path == "-" {
        let mut out = std::io::stdout().lock();
        let written = all_pieces(&mut out, make)?;
        return unless_closed(written.and_then(|()| out.flush()));
    }
    let cannot = |error| cannot_be_written(path, &error);
    // A device or a pipe cannot be replaced by a file.
    if Path::new(path).metadata().is_ok_and(|known| !known.is_file()) {
        let mut out = std::fs::OpenOptions::new().write(true).open(path).map_err(cannot)?;
        return all_pieces(&mut out, make)?.map_err(cannot);
    }
    let (mut file, place) = temporary_next_to(Path::new(path)).map_err(cannot)?;
    all_pieces(&mut file, make)?.map_err(cannot)?;
    file.as_file().sync_all().map_err(cannot)?;
    file.persist(place).map_err(|error| cannot(error.error))?;
    Ok(())
}

/// Makes and writes the pieces, up to one that cannot be written.
fn all_pieces(
    out: &mut dyn Write,
    make: impl FnOnce(Sink<'_>) -> Result<(), Failure>,
) -> Result<std::io::Result<()>, Failure> {
    let mut written = Ok(());
    make(&mut |piece| {
        if written.is_ok() {
            written = out.write_all(piece);
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(written)
}

/// As [`write`], a trace, whose text is not held as a whole.
pub fn write_trace(path: &str, trace: &Trace) -> Result<(), Failure> {
    write_pieces(path, |sink| {
        let mut out = BufWriter::with_capacity(1 << 16, Pieces(sink));
        let written = serde_json::to_writer(&mut out, trace).map_err(std::io::Error::from);
        // It fails only where whoever takes the pieces does, who says why.
        let _ = written.and_then(|()| out.flush());
        Ok(())
    })
}

/// What takes pieces, as a writer.
struct Pieces<'s>(Sink<'s>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match (self.0)(bytes) {
            ControlFlow::Continue(()) => Ok(bytes.len()),
            ControlFlow::Break(()) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Refuses a path that [`write`] cannot write, before the work starts, so that no result is lost.
pub fn expect_room_at(path: &str) -> Result<(), Failure> {
    let cannot = |error| cannot_be_written(path, &error);
    match Path::new(path).metadata() {
        _ if path == "-" => Ok(()),
        Ok(known) if known.is_dir() => Err(cannot(ErrorKind::IsADirectory.into())),
        // To open a pipe could wait for its reader.
        Ok(known) if !known.is_file() => Ok(()),
        _ => temporary_next_to(Path::new(path)).map(drop).map_err(cannot),
    }
}

/// Refuses two documents on standard output: their reader could not tell where one ends.
pub fn expect_one_document(documents: [(&str, bool); 2]) -> Result<(), Failure> {
    match documents {
        [(first, true), (second, true)] => Err(Failure::input(format!(
            "{first} and {second} cannot both use standard output: give one of them a file"
        ))),
        _ => Ok(()),
    }
}

fn cannot_be_written(path: &str, error: &std::io::Error) -> Failure {
    // As a shell's variable that is not set leaves it.
    if path.is_empty() {
        return Failure::work("a file without a name cannot be written")
            .with_help("give a name, or `-` for standard output");
    }
    Failure::work(format!("{path} cannot be written: {error}"))
}

/// An empty file in the folder in which that of `path` lies or is to lie, and its place there; the file goes where it is
/// not given that name. One that takes the place of another may be read and written by the same people.
fn temporary_next_to(path: &Path) -> std::io::Result<(tempfile::NamedTempFile, PathBuf)> {
    let place = behind_links(path)?;
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(std::io::Error::new(ErrorKind::NotFound, format!("there is no folder {}", folder.display())));
    }
    let known = place.metadata().ok().map(|known| known.permissions());
    if let Some(known) = &known {
        // A rename checks only the folder. A read-only mark counts even for a user who can ignore permissions.
        if known.readonly() {
            return Err(std::io::Error::new(ErrorKind::PermissionDenied, "the file exists and is read-only"));
        }
        std::fs::OpenOptions::new().write(true).open(&place)?;
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".pipeplan-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: what the umask leaves of this.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder)?;
    if let Some(known) = known {
        file.as_file().set_permissions(known)?;
    }
    Ok((file, place))
}

/// Where the file that `path` names lies, or would be made: what is renamed to a link takes the link's place, and what it
/// leads to would stay as it was.
fn behind_links(path: &Path) -> std::io::Result<PathBuf> {
    // As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut place = path.to_owned();
    for _ in 0..MOST_LINKS {
        // An error is no link.
        let Ok(target) = std::fs::read_link(&place) else { return Ok(place) };
        place = place.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(std::io::Error::other("its symbolic link points to no file"))
}
