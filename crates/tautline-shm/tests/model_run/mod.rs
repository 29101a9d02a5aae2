//! How both files run their models.

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

pub(crate) fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Works on what a model shares, in a thread of its own.
pub(crate) fn spawn<T: 'static, R: 'static>(
    shared: &Arc<T>,
    work: impl FnOnce(Arc<T>) -> R + 'static,
) -> JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || work(shared))
}
