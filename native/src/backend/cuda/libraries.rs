//! Finds the GPU libraries, none of which the binary is linked with: so one binary serves machines with and without a
//! GPU, and a person who lacks one hears which, where it was looked for, and how to get it.
//!
//! A library that is found is loaded by its path and stays loaded. Whoever later asks for it by name (as `cudarc` does,
//! which panics where nothing has that name) then gets the same one, from Python wheels too, which stand in no folder
//! that the system searches. But `cudarc` asks for a toolkit's `libX.so` first, as which no wheel is known: where the
//! system's loader finds that, it is what is called. So it is the first that is looked at here, too, and a person who names
//! another file hears that it would not be.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

/// A library that the GPU runner uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// The driver's own interface.
    Driver,
    /// Compiles kernels at run time.
    Nvrtc,
    /// Matrix products.
    Cublas,
    /// Transfers between GPUs.
    Nccl,
    /// Tells how GPUs are connected.
    Nvml,
}

impl Which {
    /// All of them.
    pub const ALL: [Which; 5] = [Which::Driver, Which::Nvrtc, Which::Cublas, Which::Nccl, Which::Nvml];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Which::Driver => "driver",
            Which::Nvrtc => "NVRTC",
            Which::Cublas => "cuBLAS",
            Which::Nccl => "NCCL",
            Which::Nvml => "NVML",
        }
    }

    /// Its file names, the best first. A driver of CUDA 12 runs nothing that the libraries of 13 make; one of 13 runs
    /// what those of 12 do.
    pub fn file_names(self) -> &'static [&'static str] {
        match self {
            Which::Driver => &["libcuda.so.1", "libcuda.so"],
            Which::Nvrtc if driver_is_12() => &["libnvrtc.so.12"],
            Which::Cublas if driver_is_12() => &["libcublas.so.12"],
            Which::Nvrtc => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
            Which::Cublas => &["libcublas.so", "libcublas.so.13", "libcublas.so.12"],
            Which::Nccl => &["libnccl.so.2", "libnccl.so"],
            Which::Nvml => &["libnvidia-ml.so.1"],
        }
    }

    /// Names (before `.so`) of what stands beside it and is needed with it: found from there where the system's loader
    /// would not look.
    const fn companions(self) -> &'static [&'static str] {
        match self {
            Which::Nvrtc => &["libnvrtc-builtins"],
            Which::Cublas => &["libcublasLt"],
            Which::Driver | Which::Nccl | Which::Nvml => &[],
        }
    }

    /// The variable that names the file itself.
    pub const fn variable(self) -> Option<&'static str> {
        match self {
            Which::Driver => None,
            Which::Nvrtc => Some("PIPEPLAN_NVRTC"),
            Which::Cublas => Some("PIPEPLAN_CUBLAS"),
            Which::Nccl => Some("PIPEPLAN_NCCL"),
            Which::Nvml => Some("PIPEPLAN_NVML"),
        }
    }

    /// How a person gets it.
    pub const fn how_to_get(self) -> &'static str {
        match self {
            Which::Driver => {
                "install NVIDIA's driver (580 or later); in a container, start it with the GPU (docker run --gpus \
                 all)"
            }
            Which::Nvrtc => "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit (13, or 12)",
            Which::Cublas => "pip install nvidia-cublas, or install the CUDA toolkit (13, or 12)",
            Which::Nccl => {
                "pip install nvidia-nccl-cu13, or install libnccl2; or set PIPEPLAN_NCCL to the file. Needed only for \
                 ranks in several processes"
            }
            Which::Nvml => "it is part of NVIDIA's driver. Needed only to show how GPUs are connected",
        }
    }
}

/// Where a library was looked for, and whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// Which.
    pub which: Which,
    /// Its path, where it could be loaded.
    pub found: Option<PathBuf>,
    /// Folders looked through after the system's own.
    pub folders: Vec<PathBuf>,
    /// Files that are there and could not be loaded, and why.
    pub broken: Vec<(PathBuf, String)>,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.which.name();
        if let Some(path) = &self.found {
            return write!(f, "{name}: {}", path.display());
        }
        write!(f, "{name} is missing: looked for {}", self.which.file_names().join(", "))?;
        if let Some(variable) = self.which.variable() {
            write!(f, " (and for the file that {variable} names)")?;
        }
        write!(f, " where the system keeps libraries")?;
        for folder in &self.folders {
            write!(f, ", in {}", folder.display())?;
        }
        for (path, error) in &self.broken {
            write!(f, "; {} exists, but: {error}", path.display())?;
        }
        write!(f, ". To get it: {}", self.which.how_to_get())
    }
}

/// Loads `which`, once in the life of the process.
pub fn search(which: Which) -> &'static Search {
    static SEARCHES: [OnceLock<Search>; 5] = [const { OnceLock::new() }; 5];
    SEARCHES[which as usize].get_or_init(|| look_for(which, &folders(which)))
}

/// The libraries that `--device cuda` needs and that are not there.
pub fn missing() -> Vec<&'static Search> {
    let needed = [Which::Driver, Which::Nvrtc, Which::Cublas];
    needed.into_iter().map(search).filter(|search| search.found.is_none()).collect()
}

fn look_for(which: Which, folders: &[PathBuf]) -> Search {
    let mut broken = Vec::new();
    let named = which.variable().and_then(std::env::var_os).map(PathBuf::from);
    // A bare name is looked for by the system's loader. A file that a person names is the only one.
    let everywhere = |name: &&str| -> Vec<PathBuf> {
        [PathBuf::from(name)].into_iter().chain(folders.iter().map(|folder| folder.join(name))).collect()
    };
    let candidates: Vec<PathBuf> = match named {
        Some(path) => vec![path],
        None => which.file_names().iter().flat_map(everywhere).collect(),
    };
    let mut found = None;
    for path in candidates {
        if path.is_absolute() && path.exists() {
            load_companions(which, &path);
        }
        match load(&path) {
            Ok(()) => {
                let place = place_of(&path);
                match overruled(which, &place) {
                    Some(other) => {
                        let why = format!(
                            "the system's loader finds {} first: remove that folder from LD_LIBRARY_PATH",
                            other.display()
                        );
                        broken.push((place, why));
                    }
                    None => found = Some(place),
                }
                break;
            }
            Err(error) if path.is_absolute() && path.exists() => broken.push((path, error)),
            Err(_) => {}
        }
    }
    Search { which, found, folders: folders.to_vec(), broken }
}

/// Whether the driver speaks CUDA 12 and nothing newer.
fn driver_is_12() -> bool {
    static VERSION: OnceLock<i32> = OnceLock::new();
    let ask = || {
        search(Which::Driver).found.as_ref()?;
        let mut version = 0;
        #[allow(unsafe_code, reason = "one call of the driver's library")]
        // SAFETY: the driver has been loaded by this name, stays loaded, and its function writes one int.
        unsafe {
            let path = search(Which::Driver).found.as_ref()?;
            let library = std::mem::ManuallyDrop::new(Library::new(path).ok()?);
            let call = library.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"cuDriverGetVersion").ok()?;
            (call(&mut version) == 0).then_some(version)
        }
    };
    (1..13_000).contains(VERSION.get_or_init(|| ask().unwrap_or(0)))
}

/// Loads what stands beside the library at `path` and is needed with it. Where that fails, the library itself will say.
fn load_companions(which: Which, path: &Path) {
    let Some(folder) = path.parent() else { return };
    for file in entries(folder) {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if which.companions().iter().any(|companion| name.starts_with(&format!("{companion}.so."))) {
            let _ = load(&file);
        }
    }
}

/// Loads a library for good.
fn load(path: &Path) -> Result<(), String> {
    #[allow(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the names are NVIDIA's, or a person has chosen the file; their initialisers only set the library up.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // Never unloaded: others hold functions of it.
    std::mem::forget(library);
    Ok(())
}

/// The full path of a library that has just been loaded by `path`.
fn place_of(path: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_owned();
    }
    let name = path.to_string_lossy();
    loaded(name.split(".so").next().unwrap_or_default()).into_iter().next().unwrap_or(path.to_owned())
}

/// The files of this process that are called `stem`.so, or that and a version: cuBLAS brings cuBLASLt, whose name only goes
/// on.
fn loaded(stem: &str) -> Vec<PathBuf> {
    let is_it = |file: &&str| {
        let rest = file.rsplit('/').next().and_then(|name| name.strip_prefix(stem));
        rest.is_some_and(|rest| rest == ".so" || rest.starts_with(".so."))
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(is_it)
        .map(PathBuf::from)
        .collect();
    files.dedup();
    files
}

/// The file that the bindings would call where `place` has been found: one that the system's loader has by a shorter name.
fn overruled(which: Which, place: &Path) -> Option<PathBuf> {
    let stem = match which {
        Which::Nvrtc => "libnvrtc",
        Which::Cublas => "libcublas",
        // Toolkits bring one that does nothing, under the short name alone.
        Which::Driver => "libcuda",
        // Called by their own path.
        Which::Nccl | Which::Nvml => return None,
    };
    load(Path::new(&format!("{stem}.so"))).ok()?;
    let whole = |path: &Path| path.canonicalize().unwrap_or(path.to_owned());
    loaded(stem).into_iter().find(|other| whole(other) != whole(place))
}

/// Where CUDA and Python put such libraries.
fn folders(which: Which) -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders = Vec::new();
    if matches!(which, Which::Driver | Which::Nvml) {
        let folders = ["/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"];
        return folders.map(PathBuf::from).to_vec();
    }
    for toolkit in [variable("CUDA_HOME"), variable("CUDA_PATH"), Some(PathBuf::from("/usr/local/cuda"))] {
        folders.extend(toolkit.map(|folder| folder.join("lib64")));
    }
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    folders.extend(variable("CONDA_PREFIX").map(|prefix| prefix.join("lib")));
    // Python as it would be started here.
    for bin in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        if bin.join("python3").exists() {
            prefixes.extend(bin.parent().map(Path::to_owned));
        }
    }
    prefixes.extend(variable("HOME").map(|home| home.join(".local")));
    prefixes.push(PathBuf::from("/usr/local"));
    let mut seen = BTreeSet::new();
    let mut wheels = |nvidia: PathBuf| {
        if nvidia.is_dir() && seen.insert(nvidia.clone()) {
            folders.extend(entries(&nvidia).into_iter().map(|part| part.join("lib")).filter(|lib| lib.is_dir()));
        }
    };
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            let is_python = python.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
            for packages in ["site-packages", "dist-packages"] {
                if is_python {
                    wheels(python.join(packages).join("nvidia"));
                }
            }
        }
    }
    // Wrappers that choose among several Pythons stand in folders that say nothing.
    python_paths().iter().for_each(|path| wheels(path.join("nvidia")));
    folders
}

/// Where the Python that is started here looks for packages.
fn python_paths() -> &'static [PathBuf] {
    static PATHS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let asked =
            std::process::Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
        let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        said.lines().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
    })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_where_and_how() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libnvrtc.so.13");
        std::fs::write(&file, "no library").expect("written");
        let search = look_for(Which::Nvrtc, &[folder.path().to_owned()]);
        if search.found.is_some() {
            return; // the system has one
        }
        let text = search.to_string();
        for part in ["NVRTC is missing", "libnvrtc.so.1", "exists, but", "pip install"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.contains(&*folder.path().to_string_lossy()));
        assert_eq!(search.broken.len(), 1);
    }

    #[test]
    fn searching_for_all_of_them_never_panics() {
        for which in Which::ALL {
            assert!(search(which).to_string().contains(which.name()));
        }
    }
}
