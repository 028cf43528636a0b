//! The ledger of state slots: what a sequence keeps beside its blocks lies in one slot of its rank, and every slot that
//! is used has exactly one owner. A slot is never shared and never found again: what it holds is of worth to its owner
//! alone, and needs no clearing when another one takes it. As with blocks, every move names the owner that it expects.

use super::Owner;

/// Number of a state slot in its rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// All state slots of one rank; none where a model keeps no state.
#[derive(Debug, Default)]
pub struct Slots {
    owners: Vec<Option<Owner>>,
    free: Vec<SlotId>,
}

impl Slots {
    /// `count` free slots.
    pub fn new(count: usize) -> Self {
        let last = u32::try_from(count).expect("the plan bounds the number of slots");
        Self { owners: vec![None; count], free: (0..last).rev().map(SlotId).collect() }
    }

    /// Slots in all.
    pub fn total(&self) -> usize {
        self.owners.len()
    }

    /// Slots nobody owns.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots somebody owns.
    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// A slot for `owner`, if one is free.
    pub fn take(&mut self, owner: Owner) -> Option<SlotId> {
        let slot = self.free.pop()?;
        self.owners[slot.0 as usize] = Some(owner);
        Some(slot)
    }

    /// Ends the use of a slot. Panics when it is not `owner`'s.
    pub fn give_back(&mut self, slot: SlotId, owner: Owner) {
        self.expect(slot, owner);
        self.owners[slot.0 as usize] = None;
        self.free.push(slot);
    }

    /// Moves a slot from one owner to another. Panics when it is not `from`'s.
    pub fn transfer(&mut self, slot: SlotId, from: Owner, to: Owner) {
        self.expect(slot, from);
        self.owners[slot.0 as usize] = Some(to);
    }

    /// Panics when the ledger contradicts itself. Takes time in the number of slots: for tests.
    pub fn audit(&self) {
        let mut owners: Vec<Owner> = self.owners.iter().copied().flatten().collect();
        assert_eq!(owners.len(), self.used(), "free and used ones are all");
        owners.sort_unstable();
        assert!(owners.is_sorted_by(|a, b| a < b), "one slot an owner: {owners:?}");
        for slot in &self.free {
            assert_eq!(self.owners[slot.0 as usize], None, "slot {} is free", slot.0);
        }
    }

    fn expect(&self, slot: SlotId, owner: Owner) {
        let held = self.owners[slot.0 as usize];
        assert!(held == Some(owner), "slot {} belongs to {held:?}, not to {owner:?}", slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_owner_at_a_time() {
        let (a, b) = (Owner::Lease(1), Owner::Lease(2));
        let mut slots = Slots::new(2);
        let (first, second) = (slots.take(a).unwrap(), slots.take(b).unwrap());
        assert_eq!((slots.take(a), slots.used()), (None, 2));
        slots.audit();
        slots.give_back(first, a);
        slots.transfer(second, b, a);
        assert_eq!(slots.take(b), Some(first), "what is free is taken again");
        slots.give_back(second, a);
        slots.audit();
        assert_eq!((slots.free(), slots.total()), (1, 2));
    }

    #[test]
    #[should_panic(expected = "belongs to")]
    fn a_slot_is_not_given_back_twice() {
        let mut slots = Slots::new(1);
        let slot = slots.take(Owner::Lease(1)).unwrap();
        slots.give_back(slot, Owner::Lease(1));
        slots.give_back(slot, Owner::Lease(1));
    }

    #[test]
    #[should_panic(expected = "belongs to")]
    fn a_lease_takes_the_slot_from_the_one_before() {
        let mut slots = Slots::new(1);
        let slot = slots.take(Owner::Lease(1)).unwrap();
        slots.transfer(slot, Owner::Lease(1), Owner::Lease(2));
        slots.give_back(slot, Owner::Lease(1));
    }
}
