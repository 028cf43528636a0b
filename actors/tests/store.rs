//! A tier against a store that breaks, is shared, and is full; and against a memory of all that was ever stored.

mod store {
    mod chaos;
    mod crash;
    mod host;
    mod killed;
    mod looked_after;
    mod plans;
    mod retention;
    mod shared;
}
