//! The work of a job as lists: what is asked for between the begin and the end of a job waits and goes out together, fused
//! where one product can do what two operators ask for, and repeated as a whole where an engine can. A card does not wait
//! for the end of a long job: its work goes out in lists of some dozen pieces, the first of them short, and the next list is
//! gathered while the card is busy with one.
//!
//! A list is known by its content, places in memory included: it is the same list where the same job finds its memory as it
//! was before, which [`heap`](super::heap) sees to. So nothing has to say which job is which, and what differs each time (a
//! seed, a choice of experts) is simply never the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use pipeplan_core::base::units::{Bytes, Nanos};

use super::card::{Address, Args, Card, CardError, Command, Held, Launch, Mark, Product};

/// A card whose jobs go out as lists.
pub struct Jobs {
    card: Arc<dyn Card>,
    /// What waits, while a job is under way.
    waiting: Mutex<Option<Waiting>>,
}

/// What waits of a job.
#[derive(Default)]
struct Waiting {
    list: Vec<Command>,
    /// Whether a list of this job has gone out.
    has_begun: bool,
}

/// So many pieces of work go out together, the first of a job earlier.
const LIST: usize = 32;
const FIRST_LIST: usize = 8;

impl Jobs {
    /// Around the queue `card`.
    pub fn new(card: Arc<dyn Card>) -> Jobs {
        Jobs { card, waiting: Mutex::new(None) }
    }

    /// Keeps `command` for later where a job is under way, or starts it.
    fn put(&self, command: Command) -> Result<(), CardError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Waiting { list, has_begun }) = &mut *waiting else {
            return self.card.run(std::slice::from_ref(&command));
        };
        // Never right behind a product, which may take in what comes next.
        let enough = if *has_begun { LIST } else { FIRST_LIST };
        if list.len() >= enough && !matches!(list.last(), Some(Command::Product(_))) {
            *has_begun = true;
            self.card.run(&fused(std::mem::take(list)))?;
        }
        list.push(command);
        Ok(())
    }

    /// Puts what waits on the queue.
    fn send(&self) -> Result<(), CardError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(Waiting { list, .. }) if !list.is_empty() => self.card.run(&fused(std::mem::take(list))),
            _ => Ok(()),
        }
    }
}

/// The same work in fewer pieces. The gradient of a norm for its input also adds what comes to it from beside the norm, and
/// rounds as two launches do: so it does not matter where a list ends. And a product also adds a bias or a residual whose own launch would come right behind it and leave the
/// sum where the product's result was: cuBLAS does both in its epilogue, before it rounds. Its GELU is the one by tanh and its
/// gradients of biases do not add to what is there, so none of those fit; a gate (SwiGLU) takes two products.
pub fn fused(list: Vec<Command>) -> Vec<Command> {
    let mut fused: Vec<Command> = Vec::with_capacity(list.len());
    for command in list {
        let is_taken_in = match (fused.last_mut(), &command) {
            (Some(Command::Product(product)), Command::Launch(next)) => product.take_in(next),
            (Some(Command::Launch(launch)), Command::Launch(next)) => launch.take_in(next),
            _ => false,
        };
        if !is_taken_in {
            fused.push(command);
        }
    }
    fused
}

/// What an `add` adds in place to the `elements` numbers at `result`; nothing where it does anything else.
fn added_to(result: u64, elements: i64, Args { p, n, .. }: &Args) -> Option<u64> {
    let is_it = p[2] == result && n[0] == elements && (p[0] == result) != (p[1] == result);
    is_it.then_some(if p[0] == result { p[1] } else { p[0] })
}

impl Launch {
    /// Does what `next` would do to the result, where this kernel can: whether it does.
    fn take_in(&mut self, next: &Launch) -> bool {
        let Some((name, format)) = self.kernel.rsplit_once('_') else { return false };
        let Args { p, n, .. } = &mut self.args;
        let is_open = name == "rms_norm_input_grad" && p[5] == 0;
        if !is_open || next.kernel.rsplit_once('_') != Some(("add", format)) {
            return false;
        }
        // A block takes a row.
        let added = added_to(p[4], i64::from(self.grid[0]) * n[0], &next.args);
        p[5] = added.unwrap_or(0);
        added.is_some()
    }
}

impl Product {
    /// Does what `launch` would do to the result, where an epilogue can: whether it does.
    fn take_in(&mut self, launch: &Launch) -> bool {
        let Product { rows, columns, c, beta, count, .. } = *self;
        let is_plain = self.addend.is_none() && self.bias.is_none() && beta == 0.0 && count == 1 && c.row == columns;
        let Some((name, suffix)) = launch.kernel.rsplit_once('_').filter(|_| is_plain) else { return false };
        let Args { p, n, .. } = &launch.args;
        let (result, elements) = (c.at.0, (rows * columns) as i64);
        if suffix != c.format.suffix() {
            return false;
        }
        match name {
            // One row that is added to all.
            "add_rows" if p[0] == result && p[2] == result && n[..3] == [rows as i64, columns as i64, 1] => {
                self.bias = Some(Address(p[1]));
                true
            }
            "add" => match added_to(result, elements, &launch.args) {
                Some(addend) => {
                    (self.addend, self.beta) = (Some(Address(addend)), 1.0);
                    true
                }
                None => false,
            },
            _ => false,
        }
    }
}

/// Lists that came before, and what an engine has made of those that came again.
#[derive(Debug)]
pub struct Known<G> {
    /// By a hash of their content: lists that were seen once, and those of which there is a `G`.
    once: BTreeSet<u64>,
    again: BTreeMap<u64, (Vec<Command>, G)>,
}

impl<G> Default for Known<G> {
    fn default() -> Known<G> {
        Known { once: BTreeSet::new(), again: BTreeMap::new() }
    }
}

/// What to do with a list.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a, G> {
    /// Put its work on the queue.
    Run,
    /// Make a `G` of it, [keep](Known::keep) that and repeat it from now on.
    Make(u64),
    /// It is known: repeat this.
    Repeat(&'a G),
}

/// Lists shorter than this cost less than what would be made of them.
const SHORTEST: usize = 4;
/// The most that are kept: each takes memory of the host and of the card.
const MOST_KEPT: usize = 1024;
/// The most that are remembered after they came once: where nothing repeats, remembering is in vain.
const MOST_ONCE: usize = 1 << 16;

impl<G> Known<G> {
    /// What to do with `list`.
    pub fn next(&mut self, list: &[Command]) -> Next<'_, G> {
        if list.len() < SHORTEST {
            return Next::Run;
        }
        let mut hasher = DefaultHasher::new();
        list.iter().for_each(|command| command.hash(&mut hasher));
        let key = hasher.finish();
        if self.again.contains_key(&key) {
            return match self.again.get(&key) {
                Some((known, made)) if known == list => Next::Repeat(made),
                _ => Next::Run,
            };
        }
        if self.again.len() >= MOST_KEPT || self.once.len() >= MOST_ONCE {
            return Next::Run;
        }
        if self.once.insert(key) { Next::Run } else { Next::Make(key) }
    }

    /// Keeps what was made of `list`, which [`Known::next`] gave this key.
    pub fn keep(&mut self, key: u64, list: Vec<Command>, made: G) {
        self.once.remove(&key);
        self.again.insert(key, (list, made));
    }

    /// All that was kept.
    pub fn into_made(self) -> impl Iterator<Item = G> {
        self.again.into_values().map(|(_, made)| made)
    }
}

impl Card for Jobs {
    fn name(&self) -> String {
        self.card.name()
    }

    fn shared_bytes(&self) -> u32 {
        self.card.shared_bytes()
    }

    fn has(&self, kernel: &str) -> bool {
        self.card.has(kernel)
    }

    fn reserve(&self, bytes: Bytes, leaves: Bytes) -> Result<(), CardError> {
        self.card.reserve(bytes, leaves)
    }

    fn reserve_on_host(&self, bytes: Bytes) -> Result<(), CardError> {
        self.card.reserve_on_host(bytes)
    }

    fn allocate(&self, bytes: Bytes, held: Held) -> Result<Address, CardError> {
        self.card.allocate(bytes, held)
    }

    fn free(&self, at: Address, bytes: Bytes, held: Held) {
        self.card.free(at, bytes, held);
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.send()?;
        self.card.write(to, bytes)
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.send()?;
        self.card.read(from, bytes)
    }

    fn write_on_host(&self, to: Address, bytes: &[u8]) -> Result<(), CardError> {
        self.send()?;
        self.card.write_on_host(to, bytes)
    }

    fn read_on_host(&self, from: Address, bytes: &mut [u8]) -> Result<(), CardError> {
        self.send()?;
        self.card.read_on_host(from, bytes)
    }

    fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.put(Command::Copy { from, to, bytes })
    }

    fn copy_across(&self, from: Address, to: Address, bytes: Bytes) -> Result<(), CardError> {
        self.send()?;
        self.card.copy_across(from, to, bytes)
    }

    fn zero(&self, at: Address, bytes: Bytes) -> Result<(), CardError> {
        self.put(Command::Zero { at, bytes })
    }

    fn launch(&self, launch: &Launch) -> Result<(), CardError> {
        self.put(Command::Launch(launch.clone()))
    }

    fn product(&self, product: &Product) -> Result<(), CardError> {
        product.check()?;
        self.put(Command::Product(*product))
    }

    fn prepare(&self, products: &[Product]) -> Result<(), CardError> {
        self.card.prepare(products)
    }

    fn begin_job(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(Waiting::default());
    }

    fn end_job(&self) -> Result<(), CardError> {
        let sent = self.send();
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
        sent
    }

    fn run(&self, list: &[Command]) -> Result<(), CardError> {
        self.send()?;
        self.card.run(list)
    }

    fn finish(&self) -> Result<(), CardError> {
        self.send()?;
        self.card.finish()
    }

    fn start_watch(&self) -> Result<(), CardError> {
        self.send()?;
        self.card.start_watch()
    }

    fn stop_watch(&self) -> Result<Nanos, CardError> {
        self.send()?;
        self.card.stop_watch()
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CardError> {
        self.send()?;
        self.card.mark()
    }

    /// What waits for its list goes out first: a wait is no part of a list, since a graph waits for nothing outside it.
    fn wait_for(&self, mark: &dyn Mark) -> Result<bool, CardError> {
        self.send()?;
        self.card.wait_for(mark)
    }

    fn another(&self) -> Result<Arc<dyn Card>, CardError> {
        self.card.another()
    }

    fn identity(&self) -> [u8; 16] {
        self.card.identity()
    }

    fn choose(&self) -> Result<(), CardError> {
        self.card.choose()
    }

    /// What waits is not on it yet: libraries are called between jobs, or behind [`Card::finish`].
    fn stream(&self) -> *mut c_void {
        self.card.stream()
    }

    fn workspace_bytes(&self) -> Bytes {
        self.card.workspace_bytes()
    }

    fn taken_bytes(&self) -> Option<Bytes> {
        self.card.taken_bytes()
    }

    fn trim(&self) -> Result<(), CardError> {
        self.send()?;
        self.card.trim()
    }

    fn device_memory(&self) -> Option<(Bytes, Bytes)> {
        self.card.device_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::super::card::{Format, Matrix};
    use super::*;

    /// A product of `rows` x `inner` x `columns` whose matrices fill their buffers.
    fn dense(at: [u64; 3], [rows, inner, columns]: [u64; 3], format: Format) -> Product {
        let matrix = |at, row| Matrix { at: Address(at), row, step: 0, transposed: false, format };
        let (a, b, c) = (matrix(at[0], inner), matrix(at[1], columns), matrix(at[2], columns));
        Product { rows, inner, columns, a, b, c, alpha: 1.0, beta: 0.0, count: 1, addend: None, bias: None }
    }

    fn launch_of(kernel: &str, p: &[u64], n: &[i64]) -> Launch {
        let mut args = Args::default();
        args.p[..p.len()].copy_from_slice(p);
        args.n[..n.len()].copy_from_slice(n);
        Launch { kernel: kernel.to_string(), grid: [1, 1, 1], threads: 32, shared: 0, args }
    }

    fn launch(kernel: &str, p: &[u64], n: &[i64]) -> Command {
        Command::Launch(launch_of(kernel, p, n))
    }

    #[test]
    fn only_what_an_epilogue_does_is_fused() {
        let product = dense([256, 512, 1024], [4, 8, 6], Format::Bf16);
        let of = |next: &Command| fused(vec![Command::Product(product), next.clone()]);
        let bias = launch("add_rows_bf16", &[1024, 2048, 1024], &[4, 6, 1]);
        assert_eq!(of(&bias), [Command::Product(Product { bias: Some(Address(2048)), ..product })]);
        let with = |at| Command::Product(Product { addend: Some(Address(at)), beta: 1.0, ..product });
        assert_eq!(of(&launch("add_bf16", &[2048, 1024, 1024], &[24])), [with(2048)]);
        assert_eq!(of(&launch("add_bf16", &[1024, 2048, 1024], &[24])), [with(2048)]);
        let apart = [
            // Elsewhere, twice the same, another size, another format, positions, another kernel.
            launch("add_bf16", &[2048, 1024, 2048], &[24]),
            launch("add_bf16", &[1024, 1024, 1024], &[24]),
            launch("add_bf16", &[2048, 1024, 1024], &[23]),
            launch("add_f32", &[2048, 1024, 1024], &[24]),
            launch("add_rows_bf16", &[1024, 2048, 1024], &[4, 6, 2]),
            launch("gelu_bf16", &[1024, 1024], &[24]),
        ];
        for next in apart {
            assert_eq!(of(&next), [Command::Product(product), next.clone()]);
        }
        // Not what adds already, and not twice.
        let adds = Command::Product(Product { beta: 1.0, ..product });
        assert_eq!(fused(vec![adds.clone(), bias.clone()]), [adds, bias.clone()]);
        let twice = vec![Command::Product(product), bias.clone(), launch("add_bf16", &[2048, 1024, 1024], &[24])];
        assert_eq!(fused(twice).len(), 2);
    }

    #[test]
    fn what_comes_from_beside_a_norm_is_added_where_its_gradient_is_made() {
        let whole = launch_of("rms_norm_input_grad_bf16", &[1024, 2048, 3072, 4096, 1024], &[6]);
        let norm = Launch { grid: [4, 1, 1], ..whole };
        let of = |next: &Command| fused(vec![Command::Launch(norm.clone()), next.clone()]);
        let mut with = norm.clone();
        with.args.p[5] = 8192;
        for buffers in [[8192, 1024, 1024], [1024, 8192, 1024]] {
            assert_eq!(of(&launch("add_bf16", &buffers, &[24])), [Command::Launch(with.clone())]);
        }
        let apart = [
            launch("add_bf16", &[8192, 1024, 2048], &[24]),
            launch("add_bf16", &[1024, 1024, 1024], &[24]),
            launch("add_bf16", &[8192, 1024, 1024], &[23]),
            launch("add_f32", &[8192, 1024, 1024], &[24]),
            launch("add_rows_bf16", &[1024, 8192, 1024], &[4, 6, 1]),
        ];
        for next in apart {
            assert_eq!(of(&next), [Command::Launch(norm.clone()), next.clone()]);
        }
        let twice = vec![Command::Launch(norm), launch("add_bf16", &[8192, 1024, 1024], &[24])];
        let twice = [twice, vec![launch("add_bf16", &[9216, 1024, 1024], &[24])]].concat();
        assert_eq!(fused(twice).len(), 2);
    }

    #[test]
    fn a_list_is_made_something_of_when_it_comes_again() {
        let list = |at: u64| -> Vec<Command> {
            (0..5).map(|step| Command::Zero { at: Address(at + 256 * step), bytes: 8 }).collect()
        };
        let mut known = Known::default();
        assert_eq!(known.next(&list(256)), Next::Run);
        assert_eq!(known.next(&list(512)), Next::Run, "the same work elsewhere is another list");
        let Next::Make(key) = known.next(&list(256)) else { panic!("it came again") };
        known.keep(key, list(256), "made");
        assert_eq!(known.next(&list(256)), Next::Repeat(&"made"));
        for _ in 0..3 {
            assert_eq!(known.next(&list(256)[..3]), Next::Run, "too short to be worth it");
        }
    }
}
