use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn answers(ttl: Duration) -> Answers {
    Answers::new(Times { entry: ttl, attr: ttl })
}
