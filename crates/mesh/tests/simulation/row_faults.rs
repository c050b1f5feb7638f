//! Faults of a mesh whose relays exchange rows, and a relay that forges rows.

use std::time::Duration;

use taut_mesh::rows::{Figure, Frame, MemberEntry, MemberId, Row, RowMessage};

use crate::engine::Time;
use crate::network::{Cut, Group, Node};
use crate::rows::{Event, Fault, RELAYS, RowRule, RowWorld, secret};
use crate::world::name;

impl RowWorld {
    pub(crate) fn plan_faults(&mut self) {
        let count = 1 + self.random.below(3);
        for number in 0..count {
            let node = self.random.below(RELAYS);
            let cut = |from, to| Fault::Cut(Cut { from, to });
            let one = Group::One(node as Node);
            // How soon a dead relay is avoided is checked if nothing else is wrong.
            let fault = match self.random.below(5) {
                0..=3 if count == 1 => Fault::Killed(node),
                0 | 1 => Fault::Killed(node),
                2 => cut(one, Group::All),
                3 => cut(Group::All, one),
                _ => cut(Group::Half(0), Group::Half(1)),
            };
            let begins = self
                .random
                .between(Duration::from_secs(4), Duration::from_secs(20));
            let lasts = self
                .random
                .between(Duration::from_secs(1), Duration::from_secs(30));
            self.faults.push((fault, lasts));
            self.last_end = self.last_end.max(begins + lasts);
            self.queue.at(begins, Event::Begins(number));
            self.queue.at(begins + lasts, Event::Ends(number));
        }
    }

    pub(crate) fn begins(&mut self, fault: usize) {
        match &self.faults[fault].0 {
            Fault::Cut(cut) => self.network.cut(cut.clone()),
            Fault::Killed(node) => {
                // One that routes pass, if there is one.
                let node = self.relay_on_a_route().unwrap_or(*node);
                self.faults[fault].0 = Fault::Killed(node);
                let since = self.queue.now();
                self.queue.after(Time::ZERO, Event::Avoids(fault, since));
                self.relays[node].runs = false;
                let links: Vec<_> = self.relays[node].links.values().copied().collect();
                for link in links {
                    self.close(link);
                }
            }
        }
    }

    pub(crate) fn ends(&mut self, fault: usize) {
        match &self.faults[fault].0 {
            Fault::Cut(cut) => {
                self.network.heal(cut);
                self.release();
            }
            Fault::Killed(node) => {
                let (node, process) = (*node, self.relays[*node].process + 1);
                if !self.relays[node].runs {
                    self.relays[node] = self.new_relay(node, process);
                    self.queue.after(Time::ZERO, Event::Links(node, process));
                    self.queue.after(Time::ZERO, Event::Wakes(node, process));
                }
            }
        }
    }

    /// Sends what was held back by cuts.
    fn release(&mut self) {
        for link in 0..self.links.len() {
            for end in 0..2 {
                let from = self.links[link].ends[1 - end].0;
                for bytes in std::mem::take(&mut self.links[link].held[end]) {
                    self.send(link, from, bytes);
                }
            }
        }
    }

    /// The last relay sends a row of the first, and noise.
    pub(crate) fn forges(&mut self) {
        let (liar, victim) = (RELAYS - 1, 0);
        let entry = MemberEntry {
            id: MemberId::of(&name(liar)),
            figure: Figure::new(Duration::from_micros(1), Duration::from_micros(1), 0.0),
            passes: true,
        };
        let row = Row {
            version: u64::MAX / 2 + self.queue.now().as_millis() as u64,
            members: [entry].into(),
            ..Row::default()
        };
        // With the right key, a forged row cannot be told from a real one.
        let key = match self.broken {
            Some(RowRule::Truth) => secret(victim),
            _ => secret(liar),
        };
        let signed = row.sign(&name(victim), &key);
        let message = RowMessage::whole(MemberId::of(&name(victim)), &signed, Duration::ZERO);
        let links: Vec<_> = self.relays[liar].links.values().copied().collect();
        for (number, link) in links.into_iter().enumerate() {
            self.send(link, liar, Frame::Row(message.encode()).encode());
            if number == 0 {
                let noise = (0..64).map(|_| self.random.bits() as u8).collect();
                self.send(link, liar, noise);
            }
        }
        if self.queue.now() < self.last_end {
            self.queue.after(Duration::from_secs(2), Event::Forges);
        }
    }
}
