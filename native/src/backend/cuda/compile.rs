//! Kernels made machine code by NVRTC, and kept for the next process.
#![allow(unsafe_code, reason = "NVRTC is a C library; each call says why it is sound")]

use std::ffi::CString;

use cudarc::nvrtc::{result as nvrtc, sys};

use super::card::CardError;
use super::driver::guarded;
use super::libraries::{self, Which};
use super::{cache, source};

/// The version of the NVRTC that was found, such as (13, 0).
pub fn version() -> Option<(u32, u32)> {
    libraries::search(Which::Nvrtc).found.as_ref()?;
    guarded("nvrtcVersion", || {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
            .result()
            .map_err(|error| CardError::call("nvrtcVersion", format!("{error:?}")))?;
        Ok((major as u32, minor as u32))
    })
    .ok()
}

/// As [`compile`], or what an earlier process has kept of it.
pub(super) fn image(capability: (u32, u32)) -> Result<Vec<u8>, CardError> {
    let kept = cache::place((source::for_gpu(), own_features(capability), version()), "cubin");
    if let Some(image) = kept.as_ref().and_then(|place| std::fs::read(place).ok()).filter(|image| is_code(image)) {
        return Ok(image);
    }
    // A card that is newer than the compiler: the driver makes the last step itself, and keeps it.
    if let Some(older) = older_than(capability) {
        return assembly(&source::for_gpu(), older).map(|text| [text.as_bytes(), b"\0"].concat());
    }
    let image = compile(capability)?;
    if let Some(place) = kept {
        cache::keep(&place, &image);
    }
    Ok(image)
}

/// The newest capability that NVRTC knows below `capability`, where it does not know that itself.
fn older_than(capability: (u32, u32)) -> Option<(u32, u32)> {
    let known = guarded("nvrtcGetSupportedArchs", || {
        let fail = |error| CardError::call("nvrtcGetSupportedArchs", format!("{error:?}"));
        let mut count = 0;
        // SAFETY: writes one int; then as many as it said there are.
        unsafe {
            sys::nvrtcGetNumSupportedArchs(&mut count).result().map_err(fail)?;
            let mut all = vec![0; count.max(0) as usize];
            sys::nvrtcGetSupportedArchs(all.as_mut_ptr()).result().map_err(fail)?;
            Ok(all)
        }
    });
    // Where it does not say, compiling will.
    let known: Vec<(u32, u32)> =
        known.ok()?.into_iter().map(|number| (number as u32 / 10, number as u32 % 10)).collect();
    let is_known = known.contains(&capability);
    known.into_iter().filter(|known| *known < capability && !is_known).max()
}

/// Whether `image` begins as machine code does.
fn is_code(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// Machine code of all kernels for a GPU of `capability`.
///
/// # Errors
/// [`CardError::Missing`] without NVRTC, [`CardError::Compile`].
pub fn compile(capability: (u32, u32)) -> Result<Vec<u8>, CardError> {
    compile_with(capability, &[]).map(|(image, _)| image)
}

/// The same with `more` options, and what the compiler says.
fn compile_with(capability: (u32, u32), more: &[&str]) -> Result<(Vec<u8>, String), CardError> {
    let architecture = format!("--gpu-architecture=sm_{}", own_features(capability));
    // Checkers of memory then name the line.
    let options = [&[architecture.as_str(), "-lineinfo"], more].concat();
    translate(&source::for_gpu(), &options, (sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN))
}

/// As compilers call GPUs of `capability` with all that they alone have: Hopper's products of groups of warps, which NVRTC
/// knows from 12.0 on.
fn own_features((major, minor): (u32, u32)) -> String {
    let own = if (major, minor) == (9, 0) && version() >= Some((12, 0)) { "a" } else { "" };
    format!("{major}{minor}{own}")
}

/// What the compiler makes of `source` before it becomes machine code: PTX for GPUs of `capability` and later, which names the
/// lines of the source.
///
/// # Errors
/// As [`compile()`].
pub fn assembly(source: &str, (major, minor): (u32, u32)) -> Result<String, CardError> {
    assembly_for(source, &format!("{major}{minor}"))
}

/// The same for GPUs of `capability` alone, with what no others have.
///
/// # Errors
/// As [`compile()`].
pub fn own_assembly(source: &str, capability: (u32, u32)) -> Result<String, CardError> {
    assembly_for(source, &own_features(capability))
}

fn assembly_for(source: &str, of: &str) -> Result<String, CardError> {
    let architecture = format!("--gpu-architecture=compute_{of}");
    let options = [architecture.as_str(), "-lineinfo"];
    let (text, _) = translate(source, &options, (sys::nvrtcGetPTXSize, sys::nvrtcGetPTX))?;
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Functions that say how long a result is, and write it.
type Results = (
    unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
    unsafe fn(sys::nvrtcProgram, *mut std::ffi::c_char) -> sys::nvrtcResult,
);

/// What `results` give of `source` compiled with `options`, and what the compiler says.
fn translate(source: &str, options: &[&str], (size_of, write): Results) -> Result<(Vec<u8>, String), CardError> {
    let search = libraries::search(Which::Nvrtc);
    if search.found.is_none() {
        return Err(CardError::Missing(vec![search.to_string()]));
    }
    guarded("compiling the kernels", || {
        let text = CString::new(source).map_err(|error| CardError::Compile(error.to_string()))?;
        let fail = |error: nvrtc::NvrtcError| CardError::Compile(format!("{error:?}"));
        let program = nvrtc::create_program(&text, Some(c"pipeplan")).map_err(fail)?;
        let options: Vec<String> = options.iter().chain(&["--std=c++17"]).map(ToString::to_string).collect();
        // SAFETY: `program` was just made and is destroyed once, below.
        let compiled = unsafe { nvrtc::compile_program(program, &options) };
        // SAFETY: `program` has been compiled, if in vain.
        let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
        let log: String = log.iter().map(|byte| char::from(*byte as u8)).collect();
        let log = log.trim_matches(['\0', '\n']).to_string();
        let result = match compiled {
            Ok(()) => {
                let mut size = 0;
                // SAFETY: asks for the size of what was compiled, then fills a buffer of that size.
                unsafe {
                    size_of(program, &mut size).result().map_err(fail)?;
                    let mut result = vec![0u8; size];
                    write(program, result.as_mut_ptr().cast()).result().map_err(fail)?;
                    Ok((result, log))
                }
            }
            Err(error) => Err(CardError::Compile(format!("{error:?} with {options:?}\n{log}"))),
        };
        // SAFETY: as above; nothing uses it from here on.
        let _ = unsafe { nvrtc::destroy_program(program) };
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRTC needs no GPU. Without it this checks nothing, and says so.
    #[test]
    fn all_kernels_compile_for_a100_h100_and_b200() {
        if libraries::search(Which::Nvrtc).found.is_none() {
            eprintln!("SKIPPED: kernels are not compiled: {}", libraries::search(Which::Nvrtc));
            return;
        }
        // NVRTC knows the B200 from 12.8 on.
        let knows_b200 = version() >= Some((12, 8));
        let capabilities = [(8, 0), (9, 0), (10, 0)].into_iter().filter(|(major, _)| *major < 10 || knows_b200);
        let compiled: Vec<_> = std::thread::scope(|scope| {
            let compile =
                |capability| scope.spawn(move || (capability, compile_with(capability, &["--ptxas-options=-v"])));
            let begun: Vec<_> = capabilities.map(compile).collect();
            begun.into_iter().map(|compiling| compiling.join().expect("it does not panic")).collect()
        });
        for (capability, compiled) in compiled {
            let (image, log) = compiled.unwrap_or_else(|error| panic!("{error}"));
            assert!(is_code(&image));
            let spilled = spilled(&log);
            assert!(spilled.len() > 100, "{log}");
            for (kernel, bytes) in spilled.iter().filter(|(_, bytes)| *bytes > 0) {
                println!("sm_{}{} {kernel}: {bytes} bytes of registers spilled", capability.0, capability.1);
            }
            // Registers that do not suffice cost time at every use. A few bytes are what a loop's ends need; attention on
            // tensor cores, which takes most of a step's time outside of products, needs hardly any.
            let most = |kernel: &str| match kernel.split('_').next() {
                Some("tensor" | "group") => 16,
                _ => 64,
            };
            let most = spilled.iter().filter(|(kernel, bytes)| *bytes > most(kernel)).collect::<Vec<_>>();
            assert!(most.is_empty(), "sm_{}{}: {most:?}", capability.0, capability.1);
        }
    }

    #[test]
    fn a_card_newer_than_the_compiler_gets_what_its_driver_finishes() {
        if libraries::search(Which::Nvrtc).found.is_none() {
            return eprintln!("SKIPPED: kernels are not compiled: {}", libraries::search(Which::Nvrtc));
        }
        assert_eq!(older_than((9, 0)), None);
        let newest = older_than((999, 0)).expect("no compiler knows it");
        let text =
            assembly("extern \"C\" __global__ void nothing() {}", newest).unwrap_or_else(|error| panic!("{error}"));
        assert!(text.contains(&format!(".target sm_{}{}", newest.0, newest.1)), "{text}");
    }

    /// Kernels that only move and change whole rows keep up with the memory when each thread stores 16 bytes at once: half as
    /// many a store took rotary positions to a fifth of a copy's rate on an H200.
    #[test]
    fn whole_rows_are_stored_in_packs() {
        const ROWS: [&str; 29] = [
            "add",
            "scale",
            "soft_cap",
            "soft_cap_grad",
            "swiglu",
            "swiglu_grad",
            "geglu",
            "geglu_grad",
            "gelu",
            "gelu_grad",
            "gelu_tanh",
            "gelu_tanh_grad",
            "add_rows",
            "rope",
            "embedding",
            "embedding_grad",
            "dispatch",
            "combine",
            "weighted_swiglu_grad",
            "row_gate",
            "split_columns",
            "join_columns",
            "latent_keys",
            "latent_keys_grad",
            "rms_norm",
            "rms_norm_input_grad",
            "layer_norm",
            "layer_norm_input_grad",
            "cross_entropy_grad",
        ];
        if libraries::search(Which::Nvrtc).found.is_none() {
            return eprintln!("SKIPPED: kernels are not compiled: {}", libraries::search(Which::Nvrtc));
        }
        let text = own_assembly(&source::for_gpu(), (8, 0)).unwrap_or_else(|error| panic!("{error}"));
        let kernels: Vec<&str> = text.split(".entry ").skip(1).collect();
        let body = |name: &str| kernels.iter().find(|body| body.starts_with(&format!("{name}_bf16(")));
        let without: Vec<&str> = ROWS
            .into_iter()
            .filter(|name| !body(name).unwrap_or_else(|| panic!("no {name}")).contains("st.global.v4"))
            .collect();
        assert!(without.is_empty(), "stored number by number: {without:?}");
    }

    /// By kernel: bytes of registers that are stored elsewhere, as the assembler says.
    fn spilled(log: &str) -> Vec<(String, u32)> {
        let (mut spilled, mut kernel) = (Vec::new(), String::new());
        for line in log.lines() {
            if let Some((_, after)) = line.split_once("Compiling entry function '") {
                kernel = after.split('\'').next().unwrap_or_default().to_string();
            }
            let bytes = line.split_once(" bytes spill stores").and_then(|(before, _)| before.rsplit(' ').next());
            if let Some(bytes) = bytes.and_then(|bytes| bytes.parse().ok()) {
                spilled.push((kernel.clone(), bytes));
            }
        }
        spilled
    }
}
