//! The facts about the job in `#SBATCH` lines, as far as directives depend on them. Options of the
//! command line have precedence, and are not visible here.

use crate::script::{Directive, Prefix};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The least and the greatest number of nodes.
    pub nodes: Option<(u32, u32)>,
    pub tasks: Option<u32>,
    pub array: bool,
    pub exclusive: bool,
}

pub fn wishes(directives: &[Directive]) -> Wishes {
    let mut wishes = Wishes::default();
    for directive in directives.iter().filter(|directive| directive.prefix == Prefix::Sbatch) {
        let mut words = directive.words.iter().map(|word| word.text.as_str());
        while let Some(word) = words.next() {
            if word.starts_with('#') {
                break;
            }
            wishes.take(word, &mut words);
        }
    }
    wishes
}

impl Wishes {
    fn take<'w>(&mut self, word: &'w str, rest: &mut impl Iterator<Item = &'w str>) {
        let mut value = |long: &str, short: &str| value_of(word, long, short, rest);
        if let Some(nodes) = value("--nodes", "-N") {
            self.nodes = range(nodes);
        } else if let Some(tasks) = value("--ntasks", "-n") {
            self.tasks = tasks.parse().ok();
        } else if value("--array", "-a").is_some() {
            self.array = true;
        } else if word == "--exclusive" || word.starts_with("--exclusive=") {
            self.exclusive = true;
        }
    }

    /// The number of nodes that the job gets, if the script alone decides.
    pub fn nodes_for_sure(&self) -> Option<u32> {
        match (self.nodes, self.tasks) {
            (Some((least, most)), _) => (least == most).then_some(least),
            (None, Some(1)) => Some(1),
            (None, _) => None,
        }
    }

    /// The least number of nodes that the job gets.
    pub fn nodes_least(&self) -> u32 {
        self.nodes.map_or(1, |(least, _)| least)
    }
}

/// The value of an option such as `--nodes=2`, `--nodes 2`, `-N2`, `-N 2`.
fn value_of<'w>(
    word: &'w str,
    long: &str,
    short: &str,
    rest: &mut impl Iterator<Item = &'w str>,
) -> Option<&'w str> {
    if word == long || word == short {
        return rest.next();
    }
    if let Some(value) = word.strip_prefix(long).and_then(|value| value.strip_prefix('=')) {
        return Some(value);
    }
    word.strip_prefix(short).filter(|value| !value.is_empty() && !word.starts_with("--"))
}

/// Reads `4` or `2-4`; Slurm's suffixes k and m are allowed, too.
fn range(text: &str) -> Option<(u32, u32)> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (count(least)?, count(most)?);
    (0 < least && least <= most).then_some((least, most))
}

fn count(text: &str) -> Option<u32> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1024),
        b'm' | b'M' => (&text[..text.len() - 1], 1024 * 1024),
        _ => (text, 1),
    };
    digits.parse::<u32>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problems;
    use crate::script;

    fn of(lines: &str) -> Wishes {
        wishes(&script::directives(lines, None, &mut Problems::default()))
    }

    #[test]
    fn nodes_are_read_in_every_spelling() {
        for (line, nodes) in [
            ("#SBATCH -N 2", Some((2, 2))),
            ("#SBATCH -N2 -n 8", Some((2, 2))),
            ("#SBATCH --nodes=2-4", Some((2, 4))),
            ("#SBATCH --time=1:00 --nodes 3 # -N 5", Some((3, 3))),
            ("#SBATCH --nodes=1k", Some((1024, 1024))),
            ("#SBATCH --nodes=4-2", None),
            ("#SBATCH --nodelist=n1", None),
        ] {
            assert_eq!(of(line).nodes, nodes, "{line}");
        }
        assert_eq!(of("#SBATCH -N 2-4").nodes_for_sure(), None);
        assert_eq!(
            (of("#SBATCH -N 2").nodes_for_sure(), of("#SBATCH -N 2-4").nodes_least()),
            (Some(2), 2)
        );
        assert_eq!(of("echo\n#SBATCH -N 2").nodes, None);
        assert_eq!(
            (of("#SBATCH -n 1").nodes_for_sure(), of("#SBATCH -n 2").nodes_for_sure()),
            (Some(1), None)
        );
    }

    #[test]
    fn arrays_and_exclusive_nodes_are_seen() {
        let wishes = of("#SBATCH --array=1-9\n#SBATCH --exclusive\n#SBATCH --ntasks=4");
        assert!(wishes.array && wishes.exclusive);
        assert_eq!(wishes.tasks, Some(4));
        assert!(of("#SBATCH -a 0-3").array && !of("#SBATCH -A acct").array);
    }
}
