//! The functions of NCCL that are used, looked up in the library at run time.
#![allow(unsafe_code, reason = "a C library: types are written down from its header, nccl.h of 2.18 and later")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::NcclError;
use crate::backend::cuda::libraries::{Which, search};

/// `ncclComm_t`.
pub type RawComm = *mut c_void;
/// `cudaStream_t`.
pub type RawStream = *mut c_void;

/// What a communicator is known by: rank 0 makes it, all others need it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// `ncclConfig_t` as of 2.18, which every later library takes: it looks at `size` and `version`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Of 2.26 and later. Before, these bytes pad the structure; libraries in between copy them by its size and may read
    /// them.
    traffic_class: c_int,
}

impl Config {
    /// Calls return at once; their end is asked for. At most `blocks` blocks of the card work on a transfer, where there is a
    /// limit.
    pub fn not_blocking(blocks: Option<u8>) -> Config {
        /// `NCCL_CONFIG_UNDEF_INT`.
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            // NCCL_VERSION(2, 18, 1): what this layout is of.
            version: 21_801,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: blocks.map_or(UNDEFINED, |_| 1),
            max_ctas: blocks.map_or(UNDEFINED, c_int::from),
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

/// `ncclResult_t`.
pub type Code = c_int;
/// `ncclSuccess`.
pub const SUCCESS: Code = 0;
/// `ncclInProgress`.
pub const IN_PROGRESS: Code = 7;

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// Bytes.
    Uint8 = 1,
    /// 32-bit floats.
    Float32 = 7,
    /// 64-bit floats.
    Float64 = 8,
    /// bfloat16.
    Bfloat16 = 9,
}

impl DataType {
    /// Bytes of a number.
    pub const fn bytes(self) -> u64 {
        match self {
            DataType::Uint8 => 1,
            DataType::Bfloat16 => 2,
            DataType::Float32 => 4,
            DataType::Float64 => 8,
        }
    }
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduce {
    /// The sum.
    Sum = 0,
    /// The greatest.
    Max = 2,
    /// The mean.
    Avg = 4,
}

/// NCCL's functions.
#[allow(missing_docs, reason = "as in nccl.h")]
#[derive(Clone, Copy)]
pub struct Functions {
    pub get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    pub get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    pub get_error_string: unsafe extern "C" fn(Code) -> *const c_char,
    pub get_last_error: unsafe extern "C" fn(RawComm) -> *const c_char,
    pub init_rank_config: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> Code,
    pub get_async_error: unsafe extern "C" fn(RawComm, *mut Code) -> Code,
    pub finalize: unsafe extern "C" fn(RawComm) -> Code,
    pub destroy: unsafe extern "C" fn(RawComm) -> Code,
    pub abort: unsafe extern "C" fn(RawComm) -> Code,
    pub group_start: unsafe extern "C" fn() -> Code,
    pub group_end: unsafe extern "C" fn() -> Code,
    pub send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, RawStream) -> Code,
    pub recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code,
    pub all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code,
    pub all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code,
    pub reduce_scatter:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code,
    pub broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code,
    pub reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, RawStream) -> Code,
}

/// NCCL's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 2.
    pub major: u32,
    /// 30 of 2.30.7.
    pub minor: u32,
    /// 7 of 2.30.7.
    pub patch: u32,
}

impl Version {
    /// The first that lets ranks share a GPU.
    pub const SHARES_GPUS: Version = Version { major: 2, minor: 30, patch: 3 };
    /// The first whose configuration has the layout of [`Config`].
    pub const OLDEST: Version = Version { major: 2, minor: 18, patch: 1 };

    /// From NCCL's own number: 23007 is 2.30.7.
    pub fn of_number(number: u32) -> Version {
        Version { major: number / 10_000, minor: number / 100 % 100, patch: number % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A loaded NCCL.
#[derive(Clone)]
pub struct Library {
    functions: Functions,
    version: Version,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {}", self.version)
    }
}

impl Library {
    /// The library of this machine, loaded once.
    ///
    /// # Errors
    /// [`NcclError::Missing`] with where it was looked for, [`NcclError::TooOld`].
    pub fn load() -> Result<Arc<Library>, NcclError> {
        static LIBRARY: OnceLock<Result<Arc<Library>, NcclError>> = OnceLock::new();
        let load = || {
            // It asks for these by their names, and ends without them: where the system's loader would not look, they are
            // loaded now.
            [Which::Driver, Which::Nvml].into_iter().for_each(|which| _ = search(which));
            let search = search(Which::Nccl);
            match &search.found {
                Some(path) => Library::at(path).map(Arc::new),
                None => Err(NcclError::Missing(search.to_string())),
            }
        };
        LIBRARY.get_or_init(load).clone()
    }

    /// The library in the file `path`; it stays loaded.
    ///
    /// # Errors
    /// As [`Library::load`].
    pub fn at(path: &Path) -> Result<Library, NcclError> {
        // SAFETY: a person chose the file or it has NCCL's name; initialisers only set it up.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| NcclError::Missing(format!("{}: {error}", path.display())))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: nccl.h gives the function this type, and the library is never unloaded.
                *unsafe { library.get($name) }.map_err(|error| {
                    NcclError::Missing(format!("{} is not a usable NCCL: {error}", path.display()))
                })?
            };
        }
        Library::of(Functions {
            get_version: find!(b"ncclGetVersion"),
            get_unique_id: find!(b"ncclGetUniqueId"),
            get_error_string: find!(b"ncclGetErrorString"),
            get_last_error: find!(b"ncclGetLastError"),
            init_rank_config: find!(b"ncclCommInitRankConfig"),
            get_async_error: find!(b"ncclCommGetAsyncError"),
            finalize: find!(b"ncclCommFinalize"),
            destroy: find!(b"ncclCommDestroy"),
            abort: find!(b"ncclCommAbort"),
            group_start: find!(b"ncclGroupStart"),
            group_end: find!(b"ncclGroupEnd"),
            send: find!(b"ncclSend"),
            recv: find!(b"ncclRecv"),
            all_reduce: find!(b"ncclAllReduce"),
            all_gather: find!(b"ncclAllGather"),
            reduce_scatter: find!(b"ncclReduceScatter"),
            broadcast: find!(b"ncclBroadcast"),
            reduce: find!(b"ncclReduce"),
        })
    }

    /// These functions as a library.
    ///
    /// # Errors
    /// [`NcclError::TooOld`].
    pub fn of(functions: Functions) -> Result<Library, NcclError> {
        let mut number = 0;
        // SAFETY: writes one int.
        let code = unsafe { (functions.get_version)(&mut number) };
        let library = Library { functions, version: Version::of_number(number.max(0) as u32) };
        library.check("ncclGetVersion", code, std::ptr::null_mut())?;
        if library.version < Version::OLDEST {
            return Err(NcclError::TooOld { found: library.version });
        }
        Ok(library)
    }

    /// Its functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// A new id, for rank 0 to give to all others.
    ///
    /// # Errors
    /// [`NcclError::Call`], for example if no network interface can be used.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes 128 bytes.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut()).map(|()| id)
    }

    /// The error that `code` of `call` stands for. A call that is still going on is none.
    ///
    /// # Errors
    /// [`NcclError::Call`].
    pub(crate) fn check(&self, call: &'static str, code: Code, comm: RawComm) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL's texts are constant or its own, and end with 0; a null communicator is allowed.
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: as above.
        let (what, detail) =
            unsafe { (text((self.functions.get_error_string)(code)), text((self.functions.get_last_error)(comm))) };
        Err(NcclError::Call { call, what, detail: detail.trim().to_string() })
    }
}
