//! Arguments of the operations that only eyes have, and positions of several axes, which a text takes from an image in
//! it: tokens of an image lie in rows and columns, and see each other, whichever comes first.

use super::RopeTable;

/// Attention in which every token sees every other, to be computed without a matrix of scores.
#[derive(Copy, Clone, Debug)]
pub struct Whole<'a> {
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Queries `[tokens, heads, head_dim]`.
    pub q: &'a [f32],
    /// Keys, same shape.
    pub k: &'a [f32],
    /// Values, same shape.
    pub v: &'a [f32],
}

/// Cosines and sines of rotary position embedding where tokens have a position on each of three axes (time, row, column)
/// and each pair of a head turns by one of them.
#[derive(Clone, Debug)]
pub struct RopeAxes {
    /// Angles of one axis.
    table: RopeTable,
    /// Of each pair, its axis: 0, 1 or 2.
    axes: Vec<u8>,
}

impl RopeAxes {
    /// Pairs turn by the angles of `table` for the position on their axis. Panics unless there is an axis for each pair.
    pub fn new(table: RopeTable, axes: Vec<u8>) -> RopeAxes {
        assert_eq!(2 * axes.len(), table.rotated(), "rope: an axis for each pair");
        assert!(axes.iter().all(|&axis| axis < 3), "rope: three axes");
        RopeAxes { table, axes }
    }

    /// Values of a head that turn.
    pub fn rotated(&self) -> usize {
        self.table.rotated()
    }

    /// Positions below this one are covered, on each axis.
    pub fn positions(&self) -> usize {
        self.table.positions()
    }

    /// Writes the cosines and sines at `place` to `turn [2, rotated / 2]`. Where its positions are equal, these are those
    /// of the table, to the last bit.
    pub fn turn(&self, place: [u32; 3], turn: &mut [f32]) {
        let (cos, sin) = turn[..self.rotated()].split_at_mut(self.axes.len());
        for (pair, &axis) in self.axes.iter().enumerate() {
            (cos[pair], sin[pair]) = self.table.pair(pair, place[usize::from(axis)]);
        }
    }
}

/// Checks the arguments of `attention_whole` and gives the size of a head.
pub(crate) fn check_whole(args: &Whole<'_>, out: &[f32], tokens: usize) -> usize {
    let Whole { heads, q, k, v, .. } = *args;
    let head_dim = q.len().checked_div(heads * tokens).unwrap_or(0);
    assert_eq!(q.len(), tokens * heads * head_dim, "attention_whole: q, for {tokens} tokens, {heads} heads");
    assert_eq!((k.len(), v.len(), out.len()), (q.len(), q.len(), q.len()), "attention_whole: k, v, out");
    head_dim
}

/// Checks the arguments of `layer_norm`.
pub(crate) fn check_layer_norm(x: &[f32], weight: &[f32], bias: &[f32]) {
    assert!(!weight.is_empty(), "layer_norm: no weight");
    assert_eq!(weight.len(), bias.len(), "layer_norm: weight and bias");
    assert!(x.len().is_multiple_of(weight.len()), "layer_norm: {} values, rows of {}", x.len(), weight.len());
}

/// Checks the arguments of `rope_axes` and gives the size of a head.
pub(crate) fn check_axes(x: &[f32], heads: usize, places: &[[u32; 3]], rope: &RopeAxes) -> usize {
    let count = places.len() * heads;
    let head_dim = x.len().checked_div(count).unwrap_or(rope.rotated());
    assert_eq!(x.len(), count * head_dim, "rope_axes: x, for {} places, {heads} heads", places.len());
    assert!(rope.rotated() <= head_dim, "rope_axes: {} values turn, heads have {head_dim}", rope.rotated());
    if let Some(place) = places.iter().find(|place| place.iter().any(|&p| p as usize >= rope.positions())) {
        panic!("rope_axes: place {place:?}, the table covers {}", rope.positions());
    }
    head_dim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_positions_turn_as_the_table_says() {
        let table = RopeTable::new(&[1.0, 0.3, 0.01], 1.5, 2_000);
        let rope = RopeAxes::new(table.clone(), vec![2, 0, 1]);
        let (mut got, mut want) = ([0.0; 6], [0.0; 6]);
        for position in [0, 1, 255, 256, 1_999] {
            rope.turn([position; 3], &mut got);
            table.turn(position, &mut want);
            assert_eq!(got, want, "position {position}");
        }
        rope.turn([7, 300, 0], &mut got);
        assert_eq!((got[0], got[3]), (1.5, 0.0), "pair 0 is on axis 2");
        table.turn(7, &mut want);
        assert_eq!((got[1], got[4]), (want[1], want[4]), "pair 1 is on axis 0");
    }
}
