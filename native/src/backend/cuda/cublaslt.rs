//! Products through cuBLASLt: which algorithm, chosen once for each shape and layout, and what its epilogue does besides.
//!
//! Operands are bf16 or f32, sums and factors f32, results either. Its libraries choose among algorithms by a heuristic that
//! depends on shapes alone, so every rank and every run takes the same one, and gets the same bits.
#![allow(unsafe_code, reason = "calls of cuBLASLt; each says why it is sound")]

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;
use cudarc::cublaslt::{result as lt, sys};

use super::card::{Address, CardError, Format, Matrix, Product};
use super::fallbacks;

/// What an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    sizes: [u64; 4],
    rows: [u64; 3],
    steps: [u64; 3],
    transposed: [bool; 2],
    formats: [Format; 3],
    has_bias: bool,
    /// Of a, b, c and what is added: the power of two that their addresses are multiples of, up to 256.
    alignments: [u32; 4],
}

/// A product of one shape, ready to be started.
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    /// As cuBLAS names them: a, b, c and d.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by this plan, and not used again.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.description);
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
        }
    }
}

/// A handle with what it has chosen so far.
pub struct Products {
    handle: sys::cublasLtHandle_t,
    /// Nothing for shapes that it has no algorithm for.
    plans: BTreeMap<Shape, Option<Plan>>,
    workspace_bytes: usize,
    /// Multiprocessors to count on, where not all.
    multiprocessors: Option<u32>,
}

fn fail(call: &str) -> impl Fn(lt::CublasError) -> CardError + '_ {
    move |error| CardError::call(call, format!("{error:?}"))
}

const fn kind(format: Format) -> sys::cudaDataType {
    match format {
        Format::F32 => sys::cudaDataType::CUDA_R_32F,
        Format::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

fn alignment(at: Address) -> u32 {
    1 << at.0.trailing_zeros().min(8)
}

impl Shape {
    fn of(product: &Product) -> Shape {
        let Product { rows, inner, columns, a, b, c, count, addend, bias, .. } = *product;
        Shape {
            sizes: [rows, inner, columns, count],
            rows: [a.row, b.row, c.row],
            steps: [a.step, b.step, c.step],
            transposed: [a.transposed, b.transposed],
            formats: [a.format, b.format, c.format],
            has_bias: bias.is_some(),
            alignments: [a.at, b.at, c.at, addend.unwrap_or(c.at)].map(alignment),
        }
    }
}

impl Products {
    /// With a new handle, for the current context.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn new(workspace_bytes: usize, multiprocessors: Option<u32>) -> Result<Products, CardError> {
        let handle = lt::create_handle().map_err(fail("cublasLtCreate"))?;
        Ok(Products { handle, plans: BTreeMap::new(), workspace_bytes, multiprocessors })
    }

    /// Starts `product` on `stream`, with the workspace at `workspace`; says whether there is an algorithm for it.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn start(&mut self, product: &Product, workspace: Address, stream: *mut c_void) -> Result<bool, CardError> {
        let shape = Shape::of(product);
        if !self.plans.contains_key(&shape) {
            let plan = self.plan(product)?;
            fallbacks::count(|tally| match plan {
                Some(_) => tally.products += 1,
                None => tally.plain_products += 1,
            });
            self.plans.insert(shape, plan);
        }
        let Some(Some(plan)) = self.plans.get(&shape) else { return Ok(false) };
        let Product { rows, inner, columns, a, b, c, alpha, beta, addend, bias, .. } = product;
        let refused = sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        // SAFETY: the descriptions are those of the operands, which lie within their buffers, as `launch` has checked;
        // factors are read before the call returns. One rank's products run one after the other, so that they may share the
        // workspace.
        unsafe {
            if let Some(bias) = bias {
                describe(plan.description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)?;
            }
            let started = lt::matmul(
                self.handle,
                plan.description,
                (&raw const *alpha).cast(),
                (&raw const *beta).cast(),
                b.at.0 as *const c_void,
                plan.layouts[0],
                a.at.0 as *const c_void,
                plan.layouts[1],
                addend.unwrap_or(c.at).0 as *const c_void,
                plan.layouts[2],
                c.at.0 as *mut c_void,
                plan.layouts[3],
                &raw const plan.algorithm,
                workspace.0 as *mut c_void,
                self.workspace_bytes,
                stream.cast(),
            );
            match started {
                Ok(()) => Ok(true),
                // Promised and not kept: the older way, from now on.
                Err(error) if error.0 == refused => {
                    self.plans.insert(shape, None);
                    Ok(false)
                }
                Err(error) => Err(fail(&format!("cublasLtMatmul of {rows} x {inner} x {columns}"))(error)),
            }
        }
    }

    /// Describes `product` and asks for an algorithm.
    fn plan(&self, product: &Product) -> Result<Option<Plan>, CardError> {
        let mut plan = Plan::of(product, self.multiprocessors)?;
        let preference = preference(product, self.workspace_bytes)?;
        let [a, b, c, d] = plan.layouts;
        // SAFETY: all of it was just made; the preference is given back once.
        let found = unsafe {
            let found = lt::get_matmul_algo_heuristic(self.handle, plan.description, a, b, c, d, preference);
            let _ = lt::destroy_matmul_pref(preference);
            found
        };
        match found {
            Ok(found) => {
                plan.algorithm = found.algo;
                Ok(Some(plan))
            }
            // What it cannot do is no failure: there is the older way. Any other error would be taken for that from then on,
            // and other ranks or runs would get other bits.
            Err(error) if error.0 == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Ok(None),
            Err(error) => Err(fail("cublasLtMatmulAlgoGetHeuristic")(error)),
        }
    }
}

impl Plan {
    /// `product`, described; its algorithm is still to be chosen. Needs no GPU.
    fn of(product: &Product, multiprocessors: Option<u32>) -> Result<Plan, CardError> {
        let Product { rows, inner, columns, a, b, c, count, bias, .. } = product;
        // cuBLAS reads columns where we have rows, so it sees every matrix transposed: `cᵀ = bᵀ · aᵀ`. A row of biases is a
        // column of them there, one for each row of its result.
        let stored = |matrix: &Matrix, sizes: [u64; 2]| if matrix.transposed { [sizes[1], sizes[0]] } else { sizes };
        let (left, right) = (stored(b, [*columns, *inner]), stored(a, [*inner, *rows]));
        let layout = |matrix: &Matrix, [height, width]: [u64; 2]| {
            let layout = lt::create_matrix_layout(kind(matrix.format), height, width, matrix.row as i64)
                .map_err(fail("cublasLtMatrixLayoutCreate"))?;
            if *count > 1 {
                let (count, step) = (*count as i32, matrix.step as i64);
                use sys::cublasLtMatrixLayoutAttribute_t as Of;
                // SAFETY: the attributes are an int and a 64-bit number.
                unsafe {
                    let set = lt::set_matrix_layout_attribute;
                    set(layout, Of::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4)
                        .and_then(|()| {
                            let of = Of::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                            set(layout, of, (&raw const step).cast(), 8)
                        })
                        .map_err(fail("cublasLtMatrixLayoutSetAttribute"))?;
                }
            }
            Ok::<_, CardError>(layout)
        };
        let result = [*columns, *rows];
        let layouts = [layout(b, left)?, layout(a, right)?, layout(c, result)?, layout(c, result)?];
        let description =
            lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F)
                .map_err(fail("cublasLtMatmulDescCreate"))?;
        let plan = Plan { description, layouts, algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] } };
        let way = |matrix: &Matrix| match matrix.transposed {
            true => cublasOperation_t::CUBLAS_OP_T as u32,
            false => cublasOperation_t::CUBLAS_OP_N as u32,
        };
        // SAFETY: every attribute is of the type that the header gives it; the description was just made.
        unsafe {
            describe(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &way(b))?;
            describe(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &way(a))?;
            if let Some(bias) = bias {
                let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
                describe(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
                describe(description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &(kind(c.format) as u32))?;
                describe(description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)?;
            }
            if let Some(multiprocessors) = multiprocessors {
                let count = multiprocessors as i32;
                describe(description, Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &count)?;
            }
        }
        Ok(plan)
    }
}

/// What an algorithm for `product` may use, and count on. Needs no GPU.
fn preference(product: &Product, workspace_bytes: usize) -> Result<sys::cublasLtMatmulPreference_t, CardError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Prefer;
    let Product { a, b, c, addend, .. } = product;
    let preference = lt::create_matmul_pref().map_err(fail("cublasLtMatmulPreferenceCreate"))?;
    let alignments = [b.at, a.at, addend.unwrap_or(c.at), c.at].map(alignment);
    let attributes = [
        Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    ];
    // Parts of a sum that is cut meet in the type that is computed in: results are rounded once, behind all of it.
    let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    // SAFETY: a size and five ints, of what was just made.
    let set = unsafe {
        let set = |of, value: *const c_void, size| lt::set_matmul_pref_attribute(preference, of, value, size);
        let bytes = (&raw const workspace_bytes).cast();
        let of_reductions = Prefer::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        let sized = set(Prefer::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes, size_of::<usize>())
            .and_then(|()| set(of_reductions, (&raw const reductions).cast(), 4));
        attributes
            .into_iter()
            .zip(&alignments)
            .fold(sized, |so_far, (of, value)| so_far.and_then(|()| set(of, (&raw const *value).cast(), 4)))
    };
    set.map(|()| preference).map_err(fail("cublasLtMatmulPreferenceSetAttribute"))
}

/// Sets an attribute of a description.
///
/// # Safety
/// The attribute is of type `T`.
unsafe fn describe<T>(description: sys::cublasLtMatmulDesc_t, of: Attribute, value: &T) -> Result<(), CardError> {
    // SAFETY: as the caller promises; the value is copied.
    unsafe { lt::set_matmul_desc_attribute(description, of, (&raw const *value).cast(), size_of::<T>()) }
        .map_err(fail("cublasLtMatmulDescSetAttribute"))
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: nothing uses it any more.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::libraries::{Which, search};
    use super::*;

    /// The real library takes descriptions without a GPU, and is particular about their types. Without it this checks
    /// nothing, and says so.
    #[test]
    fn the_real_library_takes_what_describes_a_product() {
        if search(Which::Cublas).found.is_none() {
            return eprintln!("SKIPPED: cuBLASLt is not called: {}", search(Which::Cublas));
        }
        let matrix = |at, row, format| Matrix { at: Address(at), row, step: 4096, transposed: row == 51, format };
        let (a, b) = (matrix(256, 51, Format::Bf16), matrix(514, 83, Format::Bf16));
        for (format, count, bias) in [(Format::Bf16, 1, Some(Address(512))), (Format::F32, 3, None)] {
            let c = matrix(1024, 83, format);
            let (rows, inner, columns, alpha, beta) = (51, 37, 83, 1.0, 0.0);
            let product = Product { rows, inner, columns, a, b, c, alpha, beta, count, addend: None, bias };
            let plan = Plan::of(&product, Some(32));
            assert!(plan.is_ok(), "{:?}", plan.err());
            let preference = preference(&product, 32 << 20).unwrap_or_else(|error| panic!("{error}"));
            // SAFETY: just made.
            let _ = unsafe { lt::destroy_matmul_pref(preference) };
        }
        assert_eq!([256, 512, 514, 1028].map(|at| alignment(Address(at))), [256, 256, 2, 4]);
    }
}
