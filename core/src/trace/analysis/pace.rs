//! How far an analysis has come, and whether anybody still waits for it.

use core::cell::{Cell, RefCell};
use core::ops::ControlFlow;

/// Hears how many replays of a step are done, and how many there will be at most; it may end the analysis.
pub type Watcher<'w> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'w;

/// Counts replays. Once it is ended, what still asks gets no more done.
pub(super) struct Pace<'w> {
    watcher: RefCell<&'w mut Watcher<'w>>,
    done: Cell<usize>,
    most: Cell<usize>,
    ended: Cell<bool>,
}

impl<'w> Pace<'w> {
    pub(super) fn new(watcher: &'w mut Watcher<'w>) -> Pace<'w> {
        Pace { watcher: RefCell::new(watcher), done: Cell::new(0), most: Cell::new(0), ended: Cell::new(false) }
    }

    /// So many replays more will come at most.
    pub(super) fn expects(&self, more: usize) {
        self.most.set(self.most.get() + more);
    }

    /// One replay more is done. Returns whether to go on.
    pub(super) fn counts(&self) -> bool {
        self.done.set(self.done.get() + 1);
        self.goes_on()
    }

    /// Whether to go on.
    pub(super) fn goes_on(&self) -> bool {
        if self.ended.get() {
            return false;
        }
        let most = self.most.get().max(self.done.get());
        // A watcher that asks within its own call hears nothing new.
        let said = self.watcher.try_borrow_mut().map(|mut watcher| watcher(self.done.get(), most));
        self.ended.set(said.is_ok_and(|said| said.is_break()));
        !self.ended.get()
    }
}
