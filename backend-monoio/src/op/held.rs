//! [`Held`]: a buffer that monoio has.

use std::any::Any;
use std::cell::RefCell;
use std::mem;

/// A buffer that monoio has until its operation is complete.
///
/// monoio drops the buffer of a dropped operation while it has its ring borrowed, without a check. If the buffer's
/// `Drop` used an operation, that would be undefined behaviour. So the buffer is kept then, and [`free_kept`] drops it.
pub(crate) struct Held<B: 'static>(Option<B>);

const HELD: &str = "taken only here and on drop";

impl<B> Held<B> {
    pub(crate) const fn new(buf: B) -> Self {
        Self(Some(buf))
    }

    pub(crate) const fn get_ref(&self) -> &B {
        self.0.as_ref().expect(HELD)
    }

    pub(crate) const fn get_mut(&mut self) -> &mut B {
        self.0.as_mut().expect(HELD)
    }

    pub(crate) fn into_inner(mut self) -> B {
        self.0.take().expect(HELD)
    }
}

impl<B> Drop for Held<B> {
    fn drop(&mut self) {
        let Some(buf) = self.0.take() else { return };
        let mut buf = Some(Box::new(buf) as Box<dyn Any>);
        // When the thread's locals are gone, its runtimes are gone.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().extend(buf.take()));
    }
}

thread_local! {
    /// The number of operations that were dropped bounds it.
    static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Drops the buffers of operations that were dropped and have ended. Call it where the ring is not borrowed.
#[inline]
pub(crate) fn free_kept() {
    let kept = KEPT.with_borrow_mut(|kept| match kept.is_empty() {
        true => Vec::new(),
        false => mem::take(kept),
    });
    drop(kept); // outside the borrow: a buffer may begin and drop operations
}
