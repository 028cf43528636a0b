//! Whose the blocks of a request are, and how long they are kept: what its body and its headers say of it, held against
//! the classes and tenants of the topology.
//!
//! The class is the body's `prompt_cache_retention`, or else the header's, or else that of the tenant whose API key the
//! request bears. A key that belongs to no tenant says nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};
use millstream_actors::request::Keeping;
use millstream_actors::store::ClassId;
use millstream_topology::Cache;
use sha2::{Digest, Sha256};

use super::fault::Fault;
use super::fields::Fields;

/// The field of the body.
const FIELD: &str = "prompt_cache_retention";
const HEADER: HeaderName = HeaderName::from_static("x-millstream-retention");
/// Bytes of a salt.
const SALT_BYTES_MAX: usize = 256;
const DAY: Duration = Duration::from_hours(24);

/// Fields that this file reads.
pub(super) const SERVED: &[&str] = &[FIELD, "cache_salt"];

/// What a body says of its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    retention: Option<String>,
    salt: Option<String>,
}

impl Wanted {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// They are no texts, or the salt is empty or too long.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Fault> {
        let text = |name: &str| fields.get(name).map(|field| field.text().map(str::to_owned)).transpose();
        let salt = text("cache_salt")?;
        match fields.get("cache_salt").zip(salt.as_ref().map(String::len)) {
            Some((field, 0)) => return Err(field.fault("must not be empty")),
            Some((field, bytes)) if bytes > SALT_BYTES_MAX => {
                return Err(field
                    .fault(format!("must have at most {SALT_BYTES_MAX} bytes"))
                    .coded("out_of_range"));
            }
            _ => {}
        }
        Ok(Self { retention: text(FIELD)?, salt })
    }
}

/// The classes and tenants of a topology.
pub(crate) struct Keepings {
    /// By number.
    classes: Vec<(String, Duration)>,
    /// By digest of their keys: name and class.
    tenants: BTreeMap<String, (String, ClassId)>,
}

impl Keepings {
    /// Those of a plan.
    pub(crate) fn new(cache: &Cache) -> Self {
        let number =
            |name: &str| ClassId(cache.class_number(name).and_then(|n| u8::try_from(n).ok()).unwrap_or(0));
        let tenants = cache.tenants.iter();
        Self {
            classes: cache.classes().map(|(name, class)| (name.to_owned(), class.keep)).collect(),
            tenants: tenants
                .map(|(name, tenant)| (tenant.key.clone(), (name.clone(), number(&tenant.retention))))
                .collect(),
        }
    }

    /// What becomes of the blocks of a request.
    ///
    /// # Errors
    /// A class is named that the topology has not.
    pub(crate) fn choose(&self, headers: &HeaderMap, wanted: &Wanted) -> Result<Keeping, Fault> {
        let tenant = bearer(headers).and_then(|key| self.tenants.get(&digest(key)));
        let header = headers.get(&HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let class = match (&wanted.retention, header) {
            (Some(name), _) => self.class(FIELD, name)?,
            (None, Some(name)) => self.class(HEADER.as_str(), name.trim())?,
            (None, None) => tenant.map_or(ClassId::default(), |(_, class)| *class),
        };
        Ok(Keeping::of(class, tenant.map(|(name, _)| name.as_str()), wanted.salt.as_deref()))
    }

    /// The class that `name` means: its own, or one of the words of the API.
    fn class(&self, place: &str, name: &str) -> Result<ClassId, Fault> {
        let number = |place: usize| ClassId(u8::try_from(place).unwrap_or(0));
        match name {
            "in_memory" | "in-memory" => Ok(ClassId::MEMORY),
            "24h" => Ok(number(self.of_a_day())),
            _ => {
                let found = self.classes.iter().position(|(class, _)| class == name);
                found.map(number).ok_or_else(|| self.unknown(place, name))
            }
        }
    }

    /// The class that is kept shortest of those that are kept for a day or longer, or else the one that is kept longest.
    fn of_a_day(&self) -> usize {
        let kept = || (0..).zip(&self.classes).map(|(place, (_, keep))| (*keep, place));
        let long = kept().filter(|(keep, _)| *keep >= DAY).min();
        long.or_else(|| kept().max_by_key(|(keep, _)| *keep)).map_or(0, |(_, place)| place)
    }

    fn unknown(&self, place: &str, name: &str) -> Fault {
        let mut known: Vec<&str> = self.classes.iter().map(|(class, _)| class.as_str()).collect();
        known.extend(["in_memory", "24h"]);
        let shown: String = name.chars().take(64).collect();
        let message = format!("there is no class {shown:?}; this server has {}", known.join(", "));
        Fault::field(place, message).coded("unsupported_value")
    }
}

/// The API key of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let said = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = said.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

fn digest(key: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    format!("sha256:{}", Sha256::digest(key).iter().map(hex).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use millstream_topology::{HostFacts, check};

    /// `printf %s sesame | sha256sum`
    const SESAME: &str = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";

    fn keepings(cache: &str) -> Keepings {
        let text = format!(
            "model = \"m\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n[cache.retention]\n{cache}\n\
             [cache.tenants.acme]\nkey = \"sha256:{SESAME}\"\nretention = \"agent\"\n"
        );
        let plan = check(&text, "test.toml", &HostFacts { cores: 1, buckets: true })
            .unwrap_or_else(|wrong| panic!("{wrong}"));
        Keepings::new(&plan.cache)
    }

    fn choose(
        keepings: &Keepings,
        headers: &[(&str, &str)],
        retention: Option<&str>,
    ) -> Result<Keeping, Fault> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        keepings.choose(&map, &Wanted { retention: retention.map(str::to_owned), salt: None })
    }

    #[test]
    fn the_body_counts_before_the_header_and_the_header_before_the_key() {
        let keepings = keepings("long = \"30d\"");
        let class =
            |name: &str| ClassId(keepings.classes.iter().position(|(class, _)| class == name).unwrap() as u8);
        let (key, header) = (("authorization", "Bearer sesame"), ("x-millstream-retention", "long"));
        for (headers, body, expected) in [
            (&[][..], None, class("default")),
            (&[key], None, class("agent")),
            (&[key, header], None, class("long")),
            (&[key, header], Some("chat"), class("chat")),
            (&[("authorization", "bearer  other")], None, class("default")),
            (&[header], Some("in_memory"), ClassId::MEMORY),
            (&[], Some("in-memory"), ClassId::MEMORY),
            (&[], Some("24h"), class("default")),
        ] {
            assert_eq!(choose(&keepings, headers, body).unwrap().class, expected, "{headers:?} {body:?}");
        }
        let fault = choose(&keepings, &[], Some("lang")).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some(FIELD));
        assert!(fault.message.contains("default, agent, chat, long, in_memory, 24h"), "{}", fault.message);
        let fault = choose(&keepings, &[("x-millstream-retention", "lang")], None).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("x-millstream-retention"));
    }

    #[test]
    fn a_day_is_the_nearest_class_that_is_kept_as_long() {
        let named = |cache: &str| {
            let keepings = keepings(cache);
            keepings.classes[keepings.of_a_day()].0.clone()
        };
        assert_eq!(named(""), "default");
        assert_eq!(named("default = \"1h\"\nnight = \"25h\""), "night");
        assert_eq!(named("default = \"1h\"\nagent = \"2h\"\nchat = \"3h\""), "chat");
    }

    #[test]
    fn tenants_and_salts_tell_blocks_apart() {
        let keepings = keepings("");
        let of = |key: &str, salt: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(key).unwrap());
            let wanted = Wanted { retention: None, salt: salt.map(str::to_owned) };
            let Keeping { tenant, salt, .. } = keepings.choose(&headers, &wanted).unwrap();
            (tenant, salt)
        };
        let (acme, salted, own) =
            (of("Bearer sesame", None), of("Bearer sesame", Some("a")), of("x", Some("a")));
        assert_eq!((acme.0, of("Bearer wrong", None)), (salted.0, of("x", None)));
        let mut salts = [acme.1, salted.1, own.1, of("x", None).1];
        salts.sort_unstable();
        assert!(salts.is_sorted_by(|a, b| a < b), "{salts:?}");
        assert_ne!(own.0, of("x", None).0);
    }
}
