//! The queue of copies in flight; small copies count for less.
//!
//! Programs' reads wait behind the copies that are queued at the backing store, so few copies are
//! best (see [`Need`](super::brake::Need)). But a read waits for their bytes, not for their number:
//! copies of pages that lie near each other keep the head of a disk as short as one large copy. And
//! the more of them go together, the fewer times the head has to come back to them.

/// The bytes of a copy that counts as a whole one: the most that one call moves.
const WHOLE: u64 = 1 << 20;

/// The least weight of a copy, so that three whole copies are at most sixteen small ones.
const LEAST: u64 = WHOLE * 3 / 16;

#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// Whole copies at once.
    depth: u32,
    /// Copies of any size at once.
    depth_max: u32,
    active: u32,
    weight: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { depth: 1, depth_max: 1, active: 0, weight: 0 }
    }
}

/// A copy in flight.
#[derive(Debug)]
#[must_use]
pub struct Place(u64);

impl Queue {
    pub fn set(&mut self, depth: u32, depth_max: u32) {
        (self.depth, self.depth_max) = (depth.max(1), depth_max.max(1));
    }

    /// Whether one more copy may begin. The last one may exceed the depth.
    pub fn has_room(&self) -> bool {
        self.active < self.depth_max && self.weight < u64::from(self.depth) * WHOLE
    }

    /// Enters a copy. A copy that did not ask [`Queue::has_room`] is let in all the same.
    pub fn enter(&mut self, bytes: u64) -> Place {
        let weight = bytes.clamp(LEAST, WHOLE);
        self.active += 1;
        self.weight += weight;
        Place(weight)
    }

    pub fn leave(&mut self, place: Place) {
        self.active -= 1;
        self.weight -= place.0;
    }

    pub fn is_empty(&self) -> bool {
        self.active == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(depth: u32, depth_max: u32, bytes: u64) -> usize {
        let mut queue = Queue::default();
        queue.set(depth, depth_max);
        let mut places = Vec::new();
        while queue.has_room() {
            places.push(queue.enter(bytes));
        }
        let many = places.len();
        places.into_iter().for_each(|place| queue.leave(place));
        assert!(queue.is_empty() && queue.weight == 0);
        many
    }

    #[test]
    fn many_small_copies_count_as_few_large_ones() {
        assert_eq!([1, 3, 16].map(|depth| fits(depth, 16, 1 << 20)), [1, 3, 16]);
        assert_eq!([1, 3, 16].map(|depth| fits(depth, 16, 16 << 10)), [6, 16, 16]);
        assert_eq!(fits(3, 16, 512 << 10), 6);
        assert_eq!(fits(4, 4, 0), 4, "no more than the user allows");
        assert_eq!(fits(0, 0, 1 << 30), 1);
    }
}
