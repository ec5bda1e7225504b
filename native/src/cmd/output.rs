//! Where output goes: standard output, or a file that appears whole or not at all.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::Value;

use super::fail::Failure;

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
    print_bytes(pipeplan_core::canonical::pretty(value).as_bytes())
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

/// Writes a file, or standard output for `-`. A file is written beside its place and renamed, so that nobody
/// ever sees half of it.
pub fn write(path: &str, bytes: &[u8]) -> Result<(), Failure> {
    if path == "-" {
        return print_bytes(bytes);
    }
    write_file(Path::new(path), bytes).map_err(|error| Failure::work(format!("{path} cannot be written: {error}")))
}

/// Refuses a place where [`write`] would fail, before work is done whose result would be lost.
pub fn expect_room_at(path: &str) -> Result<(), Failure> {
    let cannot = |error| Failure::work(format!("{path} cannot be written: {error}"));
    match Path::new(path).metadata() {
        _ if path == "-" => Ok(()),
        Ok(known) if known.is_dir() => Err(cannot(ErrorKind::IsADirectory.into())),
        // To open a pipe could wait for its reader.
        Ok(known) if !known.is_file() => Ok(()),
        _ => beside(Path::new(path)).map(drop).map_err(cannot),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A device or a pipe cannot be replaced by a file.
    if path.metadata().is_ok_and(|known| !known.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut file = beside(path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// An empty file in the same folder, which goes where it is not given the name of `path`.
fn beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(std::io::Error::new(ErrorKind::NotFound, format!("there is no folder {}", folder.display())));
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".pipeplan-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: what the umask leaves of this.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
