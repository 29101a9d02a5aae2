//! Handles: numbers that stand for what the library holds. A number carries the generation of its
//! slot, so one that was closed is known as closed, also when its slot is used again.
//!
//! Finding what a handle stands for is wait-free: one load and one attempt at a lock that only
//! another call with the same handle can hold.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::border::Fault;
use crate::code::Code;

/// Bits of a number that say the slot.
const SLOT_BITS: u32 = 12;
/// Objects of one kind that can be open at once: as many as there are port numbers. Lower: a process
/// with many ports is refused. Higher: fewer bits for generations.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
/// The last generation of a slot. Numbers stay positive as a C `int`, and a slot that has reached it
/// is not used again, so that no number ever comes back.
const GENERATION_MAX: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// Open objects of one kind in this process.
pub(crate) struct Table<T> {
    slots: [Slot<T>; SLOT_COUNT],
    free: Mutex<Free>,
}

struct Slot<T> {
    /// Of the number that is valid now. Written under the lock of `object`; its release pairs with
    /// the acquire in [`Table::slot`].
    generation: AtomicU32,
    object: Mutex<Option<T>>,
}

/// Slots that can be taken: those given back, the longest unused first, and those never used.
struct Free {
    returned: VecDeque<usize>,
    unused_from: usize,
}

/// An object while a call uses it.
pub(crate) struct InUse<'a, T> {
    object: MutexGuard<'a, Option<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const {
                Slot {
                    generation: AtomicU32::new(1),
                    object: Mutex::new(None),
                }
            }; SLOT_COUNT],
            free: Mutex::new(Free {
                returned: VecDeque::new(),
                unused_from: 0,
            }),
        }
    }

    /// Puts an object in; its number.
    pub(crate) fn insert(&self, object: T) -> Result<u32, Fault> {
        let index = lock(&self.free).take().ok_or(Code::TooManyHandles)?;
        let slot = &self.slots[index];
        let mut place = lock(&slot.object);
        *place = Some(object);
        let generation = slot.generation.load(Acquire);
        Ok(generation << SLOT_BITS | index as u32)
    }

    /// The object of a number, for this call alone. `Busy` if another call has it, and never waits.
    pub(crate) fn enter(&self, number: u32) -> Result<InUse<'_, T>, Fault> {
        let (slot, _) = self.slot(number)?;
        match slot.object.try_lock() {
            Ok(object) => {
                // It may have been closed since it was looked up.
                self.slot(number)?;
                object.as_ref().ok_or(Code::BadHandle)?;
                Ok(InUse { object })
            }
            Err(TryLockError::WouldBlock) => Err(Code::Busy.into()),
            Err(TryLockError::Poisoned(_)) => Err(Code::Internal.into()),
        }
    }

    /// A copy of the object of a number. Waits for other such calls, which are short.
    pub(crate) fn copy(&self, number: u32) -> Result<T, Fault>
    where
        T: Clone,
    {
        let (slot, _) = self.slot(number)?;
        let object = lock(&slot.object);
        self.slot(number)?;
        Ok(object.as_ref().ok_or(Code::BadHandle)?.clone())
    }

    /// Takes an object out. Its number is bad from now on.
    pub(crate) fn remove(&self, number: u32) -> Result<T, Fault> {
        let (slot, index) = self.slot(number)?;
        let mut place = match slot.object.try_lock() {
            Ok(place) => place,
            Err(TryLockError::WouldBlock) => return Err(Code::Busy.into()),
            // A call panicked: the object is of no use, but it can be closed.
            Err(TryLockError::Poisoned(poisoned)) => {
                slot.object.clear_poison();
                poisoned.into_inner()
            }
        };
        self.slot(number)?;
        let object = place.take().ok_or(Code::BadHandle)?;
        let generation = (number >> SLOT_BITS) + 1;
        slot.generation.store(generation, Release);
        drop(place);
        if generation <= GENERATION_MAX {
            lock(&self.free).returned.push_back(index);
        }
        Ok(object)
    }

    /// The slot of a number, if the number is the slot's valid one.
    fn slot(&self, number: u32) -> Result<(&Slot<T>, usize), Fault> {
        let index = number as usize % SLOT_COUNT;
        let slot = &self.slots[index];
        if slot.generation.load(Acquire) != number >> SLOT_BITS {
            return Err(Code::BadHandle.into());
        }
        Ok((slot, index))
    }
}

impl Free {
    fn take(&mut self) -> Option<usize> {
        if self.unused_from < SLOT_COUNT {
            self.unused_from += 1;
            return Some(self.unused_from - 1);
        }
        self.returned.pop_front()
    }
}

impl<T> std::ops::Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.object.as_ref().expect("`enter` has looked")
    }
}

impl<T> std::ops::DerefMut for InUse<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.object.as_mut().expect("`enter` has looked")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is consistent at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn table() -> Box<Table<String>> {
        Box::new(Table::new())
    }

    fn code<T>(result: Result<T, Fault>) -> i32 {
        crate::border::coded(|| result.map(|_| 0))
    }

    const BAD: i32 = Code::BadHandle as i32;

    #[test]
    fn a_closed_number_never_comes_back() {
        let table = table();
        let mut numbers = Vec::new();
        // Twice round all slots.
        for count in 0..2 * SLOT_COUNT {
            let number = table.insert(count.to_string()).unwrap();
            assert_eq!(*table.enter(number).unwrap(), count.to_string());
            assert_eq!(table.remove(number).unwrap(), count.to_string());
            numbers.push(number);
        }
        for number in &numbers {
            assert_eq!(code(table.enter(*number)), BAD);
            assert_eq!(code(table.remove(*number)), BAD);
            assert!(i32::try_from(*number).is_ok_and(|number| number > 0));
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 2 * SLOT_COUNT);
    }

    #[test]
    fn a_slot_out_of_generations_is_not_used_again() {
        let table = table();
        let last = GENERATION_MAX << SLOT_BITS;
        table.slots[0].generation.store(GENERATION_MAX, Release);
        assert_eq!(table.insert(String::new()).unwrap(), last);
        table.remove(last).unwrap();
        assert!(lock(&table.free).returned.is_empty());
        assert_eq!(code(table.enter(last)), BAD);
    }

    #[test]
    fn invented_numbers_are_bad() {
        let table = table();
        let number = table.insert("only".to_owned()).unwrap();
        for wrong in [0, 1, number + 1, number << 1, u32::MAX, i32::MAX as u32] {
            assert_eq!(code(table.enter(wrong)), BAD, "{wrong:#x}");
            assert_eq!(code(table.copy(wrong)), BAD, "{wrong:#x}");
            assert_eq!(code(table.remove(wrong)), BAD, "{wrong:#x}");
        }
        assert_eq!(*table.enter(number).unwrap(), "only");
    }

    #[test]
    fn a_second_use_is_refused() {
        let table = table();
        let number = table.insert("one at a time".to_owned()).unwrap();
        let first = table.enter(number).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(code(table.enter(number)), Code::Busy as i32);
                assert_eq!(code(table.remove(number)), Code::Busy as i32);
            });
        });
        drop(first);
        assert_eq!(code(table.enter(number)), 0);
    }

    #[test]
    fn after_a_panic_only_closing_is_left() {
        let table = table();
        let number = table.insert(String::new()).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _entered = table.enter(number);
            panic!("in a call");
        }));
        assert!(panicked.is_err());
        assert_eq!(code(table.enter(number)), Code::Internal as i32);
        assert_eq!(code(table.remove(number)), 0);
        assert_eq!(code(table.enter(number)), BAD);
    }

    #[test]
    fn no_more_than_there_are_slots() {
        let table = table();
        for _ in 0..SLOT_COUNT {
            table.insert(String::new()).unwrap();
        }
        let refused = table.insert(String::new());
        assert_eq!(code(refused), Code::TooManyHandles as i32);
        table.remove(1 << SLOT_BITS).unwrap();
        assert!(table.insert(String::new()).is_ok());
    }
}
