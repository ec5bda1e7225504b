//! Products through the older cuBLAS, for those that cuBLASLt has no algorithm for. It has no epilogues: what it does not add
//! itself comes before and after it.
#![allow(unsafe_code, reason = "cuBLAS is a C library; each call says why it is sound")]

use std::ffi::c_void;

use cudarc::cublas::{result as blas, sys};

use super::card::{Address, Card, CardError, Format, Matrix, Product};
use super::driver::guarded;
use super::launch::add_bias;
use super::libraries::{self, Which};

/// The version of the cuBLAS that was found, such as (13, 1, 0); asks it by the way by which products go, and needs no GPU.
///
/// # Errors
/// [`CardError`], also where it was found and cannot be called.
pub fn version() -> Result<(u32, u32, u32), CardError> {
    let search = libraries::search(Which::Cublas);
    if search.found.is_none() {
        return Err(CardError::Missing(vec![search.to_string()]));
    }
    guarded("cublasGetProperty", || {
        use sys::libraryPropertyType_t as Property;
        let ask = |property| {
            let mut value = 0;
            // SAFETY: writes one int.
            let asked = unsafe { sys::cublasGetProperty(property, &mut value) };
            asked.result().map(|()| value as u32).map_err(|error| blas_error("cublasGetProperty", error))
        };
        Ok((ask(Property::MAJOR_VERSION)?, ask(Property::MINOR_VERSION)?, ask(Property::PATCH_LEVEL)?))
    })
}

/// A handle, which allocates memory for itself too.
pub(super) struct Plain(sys::cublasHandle_t);

impl Plain {
    /// For products on `stream` of the current context, in `workspace`, of that number of bytes, which lives longer.
    ///
    /// # Errors
    /// [`CardError`].
    pub(super) fn new(
        stream: *mut c_void,
        (workspace, bytes): (Address, usize),
        multiprocessors: Option<u32>,
    ) -> Result<Plain, CardError> {
        guarded("opening cuBLAS", || {
            let handle = blas::create_handle().map_err(|error| blas_error("cublasCreate", error))?;
            let plain = Plain(handle);
            // SAFETY: handle and stream are valid, the workspace is freed after the handle; one type by two names.
            unsafe {
                blas::set_stream(handle, stream.cast()).map_err(|error| blas_error("cublasSetStream", error))?;
                sys::cublasSetWorkspace_v2(handle, workspace.0 as *mut c_void, bytes)
                    .result()
                    .map_err(|error| blas_error("cublasSetWorkspace", error))?;
                // Parts of a sum that is cut meet in f32, as they do in `products`.
                sys::cublasSetMathMode(handle, sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)
                    .result()
                    .map_err(|error| blas_error("cublasSetMathMode", error))?;
                if let Some(count) = multiprocessors {
                    sys::cublasSetSmCountTarget(handle, count as i32)
                        .result()
                        .map_err(|error| blas_error("cublasSetSmCountTarget", error))?;
                }
            }
            Ok(plain)
        })
    }

    /// Starts `product` on `card`, whose stream this is for.
    ///
    /// # Errors
    /// [`CardError`].
    pub(super) fn start(&self, card: &dyn Card, product: &Product) -> Result<(), CardError> {
        let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = product;
        if let Some(addend) = addend {
            let bytes = ((rows - 1) * c.row + columns) * c.format.bytes();
            card.copy(*addend, c.at, bytes)?;
        }
        let narrow = |size: u64| {
            i32::try_from(size).map_err(|_| CardError::call("cublasGemmEx", format!("{size} is too large")))
        };
        let kind = |format: Format| match format {
            Format::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Format::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        };
        let way = |matrix: &Matrix| match matrix.transposed {
            true => sys::cublasOperation_t::CUBLAS_OP_T,
            false => sys::cublasOperation_t::CUBLAS_OP_N,
        };
        // cuBLAS reads columns where we have rows, so it sees every matrix transposed: `cᵀ = bᵀ · aᵀ`.
        // SAFETY: the matrices lie within their buffers, which `launch` has checked; factors are read before the call
        // returns.
        unsafe {
            blas::gemm_strided_batched_ex(
                self.0,
                way(b),
                way(a),
                narrow(*columns)?,
                narrow(*rows)?,
                narrow(*inner)?,
                (&raw const *alpha).cast(),
                b.at.0 as *const c_void,
                kind(b.format),
                narrow(b.row)?,
                b.step as i64,
                a.at.0 as *const c_void,
                kind(a.format),
                narrow(a.row)?,
                a.step as i64,
                (&raw const *beta).cast(),
                c.at.0 as *mut c_void,
                kind(c.format),
                narrow(c.row)?,
                c.step as i64,
                narrow(*count)?,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| blas_error(&format!("cublasGemmStridedBatchedEx of {rows} x {inner} x {columns}"), error))?;
        match bias {
            Some(bias) => card.launch(&add_bias(*bias, c, *rows, *columns)),
            None => Ok(()),
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: not used again.
        let _ = unsafe { blas::destroy_handle(self.0) };
    }
}

fn blas_error(call: &str, error: blas::CublasError) -> CardError {
    CardError::call(call, format!("{error:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asking for its version needs no GPU. Without it this checks nothing, and says so.
    #[test]
    fn the_cublas_that_is_found_is_the_one_that_is_called() {
        let search = libraries::search(Which::Cublas);
        let Some(path) = &search.found else {
            eprintln!("SKIPPED: cuBLAS is not called: {search}");
            return;
        };
        let (major, _, _) = version().unwrap_or_else(|error| panic!("{error}"));
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(name == "libcublas.so" || name.starts_with(&format!("libcublas.so.{major}")), "{name} is {major}");
    }
}
