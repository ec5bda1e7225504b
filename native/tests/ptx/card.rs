//! A card that runs what NVRTC made of the kernels, instruction by instruction, and forgives nothing.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use pipeplan::backend::cuda::card::{Address, Args, Card, CardError, Format, Held, Launch, Mark, Matrix, Product};
use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_ptx::{Counts, Memory, Module};

/// What an H100 gives a block.
pub const SHARED_BYTES: u32 = 227 << 10;

/// A kernel's launches so far.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub launches: u64,
    pub counts: Counts,
}

struct State {
    memory: Memory,
    ran: BTreeMap<String, Ran>,
    seed: u64,
}

/// The card. Work is done as it is asked for.
pub struct Interpreted {
    module: Arc<Module>,
    state: Mutex<State>,
    counts_traffic: bool,
    /// Whether it is asked for kernels that not all cards have.
    has_own: bool,
}

impl Interpreted {
    pub fn new(module: Arc<Module>, seed: u64, counts_traffic: bool) -> Interpreted {
        let state = State { memory: Memory::default(), ran: BTreeMap::new(), seed };
        Interpreted { module, state: Mutex::new(state), counts_traffic, has_own: true }
    }

    /// A card that has only what all cards have.
    pub fn plain(module: Arc<Module>, seed: u64) -> Interpreted {
        Interpreted { has_own: false, ..Interpreted::new(module, seed, false) }
    }

    /// By kernel, what ran.
    pub fn ran(&self) -> BTreeMap<String, Ran> {
        self.with(|state| state.ran.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn wrong(call: &str) -> impl Fn(String) -> CardError {
    move |what| CardError::call(call, what)
}

/// As it lies in a kernel's parameters.
fn parameters(args: &Args) -> Vec<u8> {
    let buffers = args.p.iter().flat_map(|at| at.to_le_bytes());
    let numbers = args.n.iter().flat_map(|number| number.to_le_bytes());
    buffers.chain(numbers).chain(args.f.iter().flat_map(|float| float.to_le_bytes())).collect()
}

/// Elements of `matrix` number `index` of the batch, `rows` by `columns` before it is transposed back.
fn elements(memory: &Memory, matrix: &Matrix, index: u64, sizes: [u64; 2]) -> Result<Vec<f64>, String> {
    let [rows, columns] = if matrix.transposed { [sizes[1], sizes[0]] } else { sizes };
    let of = matrix.format.bytes();
    let mut stored = Vec::new();
    for row in 0..rows {
        let at = matrix.at.number() + (index * matrix.step + row * matrix.row) * of;
        if let Some(byte) = memory.first_unset(at, columns * of)? {
            return Err(format!("byte {byte} of row {row} has never been written"));
        }
        let mut bytes = vec![0; (columns * of) as usize];
        memory.read(at, &mut bytes)?;
        stored.extend(numbers(&bytes, matrix.format));
    }
    let place = |at: u64| match matrix.transposed {
        true => at % sizes[1] * columns + at / sizes[1],
        false => at,
    };
    Ok((0..rows * columns).map(|at| stored[place(at) as usize]).collect())
}

fn numbers(bytes: &[u8], format: Format) -> Vec<f64> {
    match format {
        Format::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
        Format::Bf16 => bytes.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]]).into()).collect(),
    }
}

/// A product, which cuBLAS makes on a card: by the definition, rounded once.
fn multiply(memory: &mut Memory, product: &Product) -> Result<(), String> {
    let Product { rows, inner, columns, a, b, c, alpha, beta, count, addend, bias } = *product;
    let bias = bias.map(|at| elements(memory, &Matrix { at, ..c }, 0, [1, columns])).transpose()?;
    for index in 0..count {
        let left = elements(memory, &a, index, [rows, inner])?;
        let right = elements(memory, &b, index, [inner, columns])?;
        let old = match beta {
            0.0 => None,
            _ => Some(elements(memory, &Matrix { at: addend.unwrap_or(c.at), ..c }, index, [rows, columns])?),
        };
        for row in 0..rows {
            let mut bytes = Vec::new();
            for column in 0..columns {
                let sum: f64 = (0..inner)
                    .map(|k| left[(row * inner + k) as usize] * right[(k * columns + column) as usize])
                    .sum();
                let old = old.as_ref().map_or(0.0, |old| f64::from(beta) * old[(row * columns + column) as usize]);
                let bias = bias.as_ref().map_or(0.0, |bias| bias[column as usize]);
                let value = (f64::from(alpha) * sum + old + bias) as f32;
                match c.format {
                    Format::F32 => bytes.extend(value.to_le_bytes()),
                    Format::Bf16 => bytes.extend(pipeplan::backend::cuda::emulated::bf16_bits(value).to_le_bytes()),
                }
            }
            memory.write(c.at.number() + (index * c.step + row * c.row) * c.format.bytes(), &bytes)?;
        }
    }
    Ok(())
}

struct Past;

impl Mark for Past {
    fn is_past(&self) -> Result<bool, CardError> {
        Ok(true)
    }
}

impl Card for Interpreted {
    fn name(&self) -> String {
        "PTX, interpreted".to_string()
    }

    fn shared_bytes(&self) -> u32 {
        SHARED_BYTES
    }

    fn has(&self, kernel: &str) -> bool {
        self.has_own && self.module.kernels().any(|name| name == kernel)
    }

    fn allocate(&self, bytes: Bytes, _: Held) -> Result<Address, CardError> {
        Ok(Address::new(self.with(|state| state.memory.allocate(bytes))))
    }

    fn free(&self, at: Address, _: Bytes, _: Held) {
        self.with(|state| state.memory.free(at.number()));
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.with(|state| state.memory.write(to.number(), bytes)).map_err(wrong("write"))
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.with(|state| {
            if let Some(byte) = state.memory.first_unset(from.number(), bytes.len() as u64)? {
                return Err(format!("byte {byte} of {} has never been written", bytes.len()));
            }
            state.memory.read(from.number(), bytes)
        })
        .map_err(wrong("read"))
    }

    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.with(|state| state.memory.copy(from.number(), to.number(), bytes)).map_err(wrong("copy"))
    }

    // Host memory is of the same interpreter: a copy is made at once.
    fn copy_across(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.copy(from, to, bytes)
    }

    fn zero(&self, at: Address, bytes: Bytes) -> Result<(), CardError> {
        self.with(|state| state.memory.write(at.number(), &vec![0; bytes as usize])).map_err(wrong("zero"))
    }

    fn launch(&self, launch: &Launch) -> Result<(), CardError> {
        self.with(|state| {
            state.seed += 1;
            let counts = self.module.launch(
                &mut state.memory,
                &pipeplan_ptx::Launch {
                    kernel: &launch.kernel,
                    grid: launch.grid,
                    threads: launch.threads,
                    shared: launch.shared,
                    parameters: &parameters(&launch.args),
                    most_shared: SHARED_BYTES,
                    // Far more than any of them needs.
                    most_instructions: 1 << 30,
                    seed: state.seed,
                    counts_traffic: self.counts_traffic,
                },
            )?;
            let ran = state.ran.entry(launch.kernel.clone()).or_default();
            ran.launches += 1;
            ran.counts.add(&counts);
            Ok(())
        })
        .map_err(|fault: pipeplan_ptx::Fault| CardError::call("a launch", fault))
    }

    fn product(&self, product: &Product) -> Result<(), CardError> {
        product.check()?;
        self.with(|state| multiply(&mut state.memory, product)).map_err(wrong("product"))
    }

    fn prepare(&self, products: &[Product]) -> Result<(), CardError> {
        products.iter().try_for_each(Product::check)
    }

    fn finish(&self) -> Result<(), CardError> {
        Ok(())
    }

    fn start_watch(&self) -> Result<(), CardError> {
        Ok(())
    }

    fn stop_watch(&self) -> Result<Nanos, CardError> {
        Ok(0)
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CardError> {
        Ok(Box::new(Past))
    }

    fn wait_for(&self, _: &dyn Mark) -> Result<bool, CardError> {
        Ok(true)
    }

    fn another(&self) -> Result<Arc<dyn Card>, CardError> {
        Err(CardError::call("another queue", "this card has one"))
    }

    fn identity(&self) -> [u8; 16] {
        [0; 16]
    }

    fn choose(&self) -> Result<(), CardError> {
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    fn taken_bytes(&self) -> Option<Bytes> {
        None
    }
}
