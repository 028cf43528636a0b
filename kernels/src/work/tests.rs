//! The closed form against sums over every position.
