//! What NVIDIA's management library knows of the way between two GPUs, for people: how many NVLinks, or what of PCIe lies
//! between. Nothing that runs depends on it.
#![allow(unsafe_code, reason = "a C library: types are written down from its header, nvml.h of 12")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

use super::libraries::{Which, search};

/// The way from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// So many NVLinks of the first are up, directly or through switches.
    NvLink(u32),
    /// Both on one board.
    Board,
    /// One PCIe switch.
    Switch,
    /// Several PCIe switches, and no host bridge.
    Switches,
    /// A host bridge.
    HostBridge,
    /// Bridges within one NUMA node.
    Node,
    /// What lies between NUMA nodes.
    System,
}

impl Way {
    /// As in `nvidia-smi topo -m`.
    pub const fn short(self) -> &'static str {
        match self {
            Way::NvLink(_) => "NV",
            Way::Board => "PSB",
            Way::Switch => "PIX",
            Way::Switches => "PXB",
            Way::HostBridge => "PHB",
            Way::Node => "NODE",
            Way::System => "SYS",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::NvLink(links) => return write!(f, "{links} NVLinks"),
            Way::Board => "one board",
            Way::Switch => "one PCIe switch",
            Way::Switches => "PCIe switches",
            Way::HostBridge => "a PCIe host bridge",
            Way::Node => "PCIe bridges of one NUMA node",
            Way::System => "PCIe between NUMA nodes",
        })
    }
}

type Device = *mut c_void;
/// `nvmlReturn_t`.
type Code = c_int;
const SUCCESS: Code = 0;
/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const NVLINK: c_int = 2;
/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: c_uint = 36;

/// The loaded library.
pub struct Nvml {
    library: Library,
}

impl Nvml {
    /// The library of this machine; nothing if there is none or it knows no driver.
    pub fn load() -> Option<Nvml> {
        Nvml::at(search(Which::Nvml).found.as_deref()?)
    }

    fn at(path: &Path) -> Option<Nvml> {
        // SAFETY: a person chose the file or it has NVIDIA's name; initialisers only set it up.
        let nvml = Nvml { library: unsafe { Library::new(path) }.ok()? };
        // SAFETY: takes nothing.
        let started = unsafe { nvml.find::<unsafe extern "C" fn() -> Code>(c"nvmlInit_v2")?() };
        (started == SUCCESS).then_some(nvml)
    }

    /// # Safety
    /// `F` is the function's type.
    unsafe fn find<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: as the caller promises; whatever is found is used only while this lives.
        unsafe { self.library.get::<F>(name.to_bytes_with_nul()) }.ok().map(|function| *function)
    }

    /// The driver's version, such as 580.65.06.
    pub fn driver_version(&self) -> Option<String> {
        let mut text = [0 as c_char; 96];
        // SAFETY: writes at most that number of bytes, and ends them with 0.
        unsafe {
            let ask: unsafe extern "C" fn(*mut c_char, c_uint) -> Code = self.find(c"nvmlSystemGetDriverVersion")?;
            (ask(text.as_mut_ptr(), text.len() as c_uint) == SUCCESS)
                .then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// The way between the GPUs at two places on the PCI bus, such as `0000:1b:00.0`.
    pub fn way(&self, from: &str, to: &str) -> Option<Way> {
        let (from, to) = (self.device(from)?, self.device(to)?);
        // SAFETY: both are the library's; each call writes one int.
        unsafe {
            let mut status = -1;
            let status_of: Option<unsafe extern "C" fn(Device, Device, c_int, *mut c_int) -> Code> =
                self.find(c"nvmlDeviceGetP2PStatus");
            let is_linked = status_of.is_some_and(|ask| ask(from, to, NVLINK, &mut status) == SUCCESS) && status == 0;
            if let (true, links @ 1..) = (is_linked, self.links(from)) {
                return Some(Way::NvLink(links));
            }
            let ask: unsafe extern "C" fn(Device, Device, *mut c_int) -> Code =
                self.find(c"nvmlDeviceGetTopologyCommonAncestor")?;
            let mut level = -1;
            (ask(from, to, &mut level) == SUCCESS).then_some(())?;
            // `nvmlGpuTopologyLevel_t`.
            Some(match level {
                0 => Way::Board,
                10 => Way::Switch,
                20 => Way::Switches,
                30 => Way::HostBridge,
                40 => Way::Node,
                50 => Way::System,
                _ => return None,
            })
        }
    }

    fn device(&self, bus: &str) -> Option<Device> {
        let (bus, mut device) = (CString::new(bus).ok()?, std::ptr::null_mut());
        // SAFETY: the text ends with 0; writes one pointer.
        let code = unsafe {
            let ask: unsafe extern "C" fn(*const c_char, *mut Device) -> Code =
                self.find(c"nvmlDeviceGetHandleByPciBusId_v2")?;
            ask(bus.as_ptr(), &mut device)
        };
        (code == SUCCESS).then_some(device)
    }

    /// NVLinks of `device` that are up.
    fn links(&self, device: Device) -> u32 {
        // SAFETY: the device is the library's; each call writes one int.
        unsafe {
            let Some(ask) =
                self.find::<unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> Code>(c"nvmlDeviceGetNvLinkState")
            else {
                return 0;
            };
            let is_up = |link: &c_uint| {
                let mut state = 0;
                ask(device, *link, &mut state) == SUCCESS && state == 1
            };
            (0..MOST_LINKS).filter(is_up).count() as u32
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes nothing; it was started.
        unsafe {
            if let Some(end) = self.find::<unsafe extern "C" fn() -> Code>(c"nvmlShutdown") {
                end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Against a library that stands in for the real one: two GPUs with NVLinks, and one beyond a host bridge.
    #[test]
    fn ways_between_gpus_are_those_that_the_library_tells() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("libnvml.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/nvml.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
        let compiled = Command::new(&compiler).args(["-w", "-shared", "-fPIC", source, "-o"]).arg(&out).output();
        let Ok(output) = compiled else {
            eprintln!("SKIPPED: no library that stands in for NVML: {compiler} cannot be started");
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let nvml = Nvml::at(&out).expect("it loads");
        assert_eq!(nvml.driver_version().as_deref(), Some("580.65.06"));
        let way = |from: u32, to: u32| nvml.way(&format!("0000:0{from}:00.0"), &format!("0000:0{to}:00.0"));
        assert_eq!(way(0, 1), Some(Way::NvLink(12)));
        assert_eq!(way(1, 2), Some(Way::HostBridge));
        assert_eq!(way(0, 7), None, "there is no such GPU");
        assert_eq!(Way::NvLink(12).to_string(), "12 NVLinks");
    }
}
