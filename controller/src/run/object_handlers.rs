//! Functions that are called with each changed object of a watch that several reconcilers share.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::DynamicObject;

/// Function that is called with each changed object, and with true if the object is deleted.
type Handler = Box<dyn Fn(&DynamicObject, bool) + Send + Sync>;

/// Functions that are called with each changed object. Clones share the functions.
#[derive(Clone, Default)]
pub struct ObjectHandlers(Arc<Mutex<Vec<Handler>>>);

impl fmt::Debug for ObjectHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectHandlers").finish_non_exhaustive()
    }
}

impl ObjectHandlers {
    /// Calls `handle` with each object that changes from now on.
    pub(super) fn subscribe(&self, handle: impl Fn(&DynamicObject, bool) + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(handle));
    }

    /// Calls all functions with an object.
    pub(super) fn call(&self, object: &DynamicObject, is_deleted: bool) {
        let handlers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handlers.iter().for_each(|handle| handle(object, is_deleted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_functions() {
        let handlers = ObjectHandlers::default();
        let seen: Arc<Mutex<Vec<bool>>> = Arc::default();
        let record = Arc::clone(&seen);
        handlers.clone().subscribe(move |_, is_deleted| record.lock().unwrap().push(is_deleted));
        let object: DynamicObject = serde_json::from_str("{\"metadata\": {}}").unwrap();
        handlers.call(&object, true);
        assert_eq!(*seen.lock().unwrap(), [true]);
    }
}
