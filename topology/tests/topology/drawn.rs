//! Drawings against the stored ones, and every SVG against the rules of XML.

use std::fs;

use crate::stored::{all_good, compare, folder, good};
use millstream_topology::{draw_mermaid, draw_svg, draw_text};

#[test]
fn drawings_are_as_stored() {
    let mut wrong = Vec::new();
    for name in ["minimal", "split", "supernode"] {
        let path = folder("../examples/topologies").join(name).with_extension("toml");
        let plan = good(&fs::read_to_string(path).unwrap(), name);
        let stored = folder("tests/drawn").join(name);
        compare(&stored.with_extension("txt"), &draw_text(&plan), &mut wrong);
        compare(&stored.with_extension("mmd"), &draw_mermaid(&plan), &mut wrong);
        compare(&stored.with_extension("svg"), &draw_svg(&plan), &mut wrong);
    }
    assert!(wrong.is_empty(), "{} files differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_svg_is_well_formed() {
    let nasty = "name = \"<b>&amp; ]]> \\u0001 \\\"\"\nmodel = \"<![CDATA[\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n";
    let nasty = ("nasty".to_owned(), nasty.to_owned());
    for (file, text) in all_good().into_iter().chain([nasty]) {
        let svg = draw_svg(&good(&text, &file));
        if let Err(wrong) = well_formed(&svg) {
            panic!("{file}: {wrong}\n{svg}");
        }
    }
}

#[test]
fn a_drawing_does_nothing_to_the_terminal() {
    let text =
        "name = \"\\u001b[31m\"\nmodel = \"\\u0007\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n";
    let plan = good(text, "nasty");
    for drawing in [draw_text(&plan), draw_mermaid(&plan), draw_svg(&plan)] {
        assert!(drawing.chars().all(|c| c == '\n' || !c.is_control()));
    }
}

#[test]
fn the_checker_of_xml_finds_what_is_wrong() {
    for bad in [
        "<a>",
        "<a></b>",
        "<a b=c/>",
        "<a>&x</a>",
        "<a/><b/>",
        "text",
        "<a b=\"<\"/>",
        "<a b=\"1\" b=\"2\"/>",
    ] {
        assert!(well_formed(bad).is_err(), "{bad}");
    }
    assert_eq!(well_formed("<a b=\"1\"><c/>&amp;</a>\n"), Ok(()));
}

/// Whether elements close in order, attributes are quoted and said once, and text holds no bare `<` or `&`.
fn well_formed(xml: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml.trim_end();
    let mut roots = 0;
    while !rest.is_empty() {
        let Some(tag) = rest.strip_prefix('<') else {
            let end = rest.find('<').unwrap_or(rest.len());
            if open.is_empty() {
                return Err(format!("text outside: {}", &rest[..end]));
            }
            entities(&rest[..end])?;
            rest = &rest[end..];
            continue;
        };
        let end = tag.find('>').ok_or("an open tag")?;
        let (inside, after) = (&tag[..end], &tag[end + 1..]);
        rest = after;
        if let Some(name) = inside.strip_prefix('/') {
            match open.pop() {
                Some(opened) if opened == name => continue,
                opened => return Err(format!("</{name}> closes {opened:?}")),
            }
        }
        roots += usize::from(open.is_empty());
        let empty = inside.ends_with('/');
        let inside = inside.trim_end_matches('/');
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        attributes_are_quoted(attributes)?;
        if !empty {
            open.push(name);
        }
    }
    match (open.is_empty(), roots) {
        (true, 1) => Ok(()),
        _ => Err(format!("{roots} roots, open: {open:?}")),
    }
}

fn attributes_are_quoted(mut rest: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    while !rest.trim().is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or_else(|| format!("no quoted value: {rest}"))?;
        let (value, after) = value.split_once('"').ok_or_else(|| format!("an open value: {value}"))?;
        entities(value)?;
        let name = name.trim();
        if seen.contains(&name) || value.contains('<') || name.contains(['<', '"', ' ']) {
            return Err(format!("attribute {name} = {value}"));
        }
        seen.push(name);
        rest = after;
    }
    Ok(())
}

fn entities(text: &str) -> Result<(), String> {
    for part in text.split('&').skip(1) {
        if !["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| part.starts_with(entity)) {
            return Err(format!("a bare &: {part}"));
        }
    }
    Ok(())
}
