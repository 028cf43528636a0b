//! Rotary embedding of whole tokens: the angles of a position are computed once and serve all its heads.

use crate::op::{Pairing, RopeTable};
use crate::reference;

/// The tokens of a call that one thread turns.
pub(crate) struct Turn<'a> {
    /// Angles.
    pub table: &'a RopeTable,
    /// Which values turn together.
    pub pairing: Pairing,
    /// Values per head.
    pub head_dim: usize,
}

impl Turn<'_> {
    /// Turns every head of `x [positions, heads, head_dim]`.
    pub(crate) fn run(&self, x: &mut [f32], positions: &[u32]) {
        let mut turn = vec![0.0; self.table.rotated()];
        let width = x.len() / positions.len().max(1);
        for (&position, token) in positions.iter().zip(x.chunks_exact_mut(width.max(1))) {
            self.table.turn(position, &mut turn);
            for head in token.chunks_exact_mut(self.head_dim) {
                match self.pairing {
                    Pairing::Half => halves(&mut head[..turn.len()], &turn),
                    Pairing::Adjacent => reference::turn_head(head, &turn, Pairing::Adjacent),
                }
            }
        }
    }
}

/// [`reference::turn_head`] of halves, as slices of equal length, which compile to vectors.
fn halves(head: &mut [f32], turn: &[f32]) {
    let (first, second) = head.split_at_mut(turn.len() / 2);
    let (cos, sin) = turn.split_at(turn.len() / 2);
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
