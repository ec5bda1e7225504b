//! Memory of a card, given back when nobody holds it.

use std::fmt;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;

use super::error::CardError;
use super::{Address, Card, Held};

/// Memory of a card, given back when dropped.
pub struct Memory {
    pub(super) card: Arc<dyn Card>,
    pub(super) at: Address,
    pub(super) bytes: Bytes,
    pub(super) held: Held,
    /// What it is a part of, which is kept as long as this.
    whole: Option<Arc<Memory>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.at.0)
    }
}

impl Memory {
    /// `bytes` of `card`, whose content is not defined.
    ///
    /// # Errors
    /// [`CardError::Full`], or another.
    pub fn new(card: &Arc<dyn Card>, bytes: Bytes) -> Result<Memory, CardError> {
        Memory::held(card, bytes, Held::Kept)
    }

    /// The same, for as long as `held` says.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn held(card: &Arc<dyn Card>, bytes: Bytes, held: Held) -> Result<Memory, CardError> {
        // An empty tensor still is somewhere.
        Ok(Memory { card: Arc::clone(card), at: card.allocate(bytes.max(1), held)?, bytes, held, whole: None })
    }

    /// The `bytes` of `whole` from `offset` on.
    pub fn part(whole: &Arc<Memory>, offset: Bytes, bytes: Bytes) -> Memory {
        assert!(
            whole.bytes.checked_sub(offset).is_some_and(|rest| bytes <= rest),
            "{bytes} bytes, {offset} into {whole:?}"
        );
        let (card, at) = (Arc::clone(&whole.card), whole.after(offset));
        Memory { card, at, bytes, held: whole.held, whole: Some(Arc::clone(whole)) }
    }

    /// `bytes` of `card`, all 0.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn zeros(card: &Arc<dyn Card>, bytes: Bytes) -> Result<Memory, CardError> {
        let memory = Memory::new(card, bytes)?;
        memory.clear()?;
        Ok(memory)
    }

    /// What `content` holds, on `card`.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn holding(card: &Arc<dyn Card>, content: &[u8]) -> Result<Memory, CardError> {
        let memory = Memory::new(card, content.len() as Bytes)?;
        memory.write(content)?;
        Ok(memory)
    }

    /// `bytes` of `card` that hold `some` over and over, which goes there once and is repeated there.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn repeating(card: &Arc<dyn Card>, bytes: Bytes, some: &[u8]) -> Result<Memory, CardError> {
        let memory = Memory::new(card, bytes)?;
        let mut filled = bytes.min(some.len() as Bytes);
        card.write(memory.at, &some[..filled as usize])?;
        while filled > 0 && filled < bytes {
            let more = filled.min(bytes - filled);
            card.copy(memory.at, memory.after(filled), more)?;
            filled += more;
        }
        Ok(memory)
    }

    /// The same content in memory of `card`, which may be another queue, for as long as `held` says; it is there when this
    /// returns.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn copied_to(&self, card: &Arc<dyn Card>, held: Held) -> Result<Memory, CardError> {
        let copy = Memory::held(card, self.bytes, held)?;
        card.copy(self.at, copy.at, self.bytes)?;
        card.finish()?;
        Ok(copy)
    }

    /// Whether it belongs to the queue `card`: then work there may use it, and it is given back behind that work.
    pub fn is_of(&self, card: &Arc<dyn Card>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.card), Arc::as_ptr(card))
    }

    /// Whether it lies in host memory.
    pub fn is_on_host(&self) -> bool {
        self.held == Held::OnHost
    }

    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Its start.
    pub fn at(&self) -> Address {
        self.at
    }

    /// The place `offset` bytes on, within this memory.
    pub fn after(&self, offset: Bytes) -> Address {
        assert!(offset <= self.bytes, "a place {offset} bytes into {self:?}");
        Address(self.at.0 + offset)
    }

    /// Waits, and reads it all.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn read(&self) -> Result<Vec<u8>, CardError> {
        let mut bytes = vec![0; self.bytes as usize];
        match self.held {
            Held::OnHost => self.card.read_on_host(self.at, &mut bytes)?,
            _ => self.card.read(self.at, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Fills it from its start on.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn write(&self, content: &[u8]) -> Result<(), CardError> {
        assert!(content.len() as Bytes <= self.bytes, "{} bytes into {self:?}", content.len());
        match self.held {
            Held::OnHost => self.card.write_on_host(self.at, content),
            _ => self.card.write(self.at, content),
        }
    }

    /// Sets it to 0.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn clear(&self) -> Result<(), CardError> {
        match self.held {
            Held::OnHost => self.card.write_on_host(self.at, &vec![0; self.bytes as usize]),
            _ => self.card.zero(self.at, self.bytes),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.whole.is_none() {
            self.card.free(self.at, self.bytes.max(1), self.held);
        }
    }
}
