//! One line of the output.

use crate::format::excerpt;

/// A node: `S-`, `H-` or `R-` and a GUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId {
    pub(super) kind: NodeKind,
    pub(super) guid: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum NodeKind {
    Switch,
    Adapter,
    Router,
}

/// A line that says something about the network.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The start of a node's section.
    Node { id: NodeId, description: &'a str },
    /// A cable from a port of the section's node.
    Port { port: u32, peer: NodeId, peer_port: u32, description: &'a str, gbit: u32 },
    /// Anything else that is known.
    Other,
}

/// Ports of a node; the format of InfiniBand has 8 bits.
const PORT_MAX: u32 = 254;

/// Parses a line.
pub(super) fn parse(line: &str) -> Result<Line<'_>, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(Line::Other);
    }
    if line.starts_with('[') {
        return port(line);
    }
    let known = [
        "#",
        "vendid=",
        "devid=",
        "sysimgguid=",
        "switchguid=",
        "caguid=",
        "rtguid=",
        "Chassis",
        "Hostname:",
    ];
    // Messages of the tool on standard error often end up in the same file.
    let messages = ["ibwarn:", "ibpanic:", "Non-Chassis Nodes"];
    if known.iter().chain(&messages).any(|start| line.starts_with(start)) {
        return Ok(Line::Other);
    }
    let kind = line.split_ascii_whitespace().next().unwrap_or_default();
    if !["Switch", "Ca", "Rt"].contains(&kind) {
        return Err(format!(
            "`{}` is not a line of ibnetdiscover; remove it, or save the output again",
            excerpt(line)
        ));
    }
    let (before, comment) = line.split_once('#').unwrap_or((line, ""));
    let id = quoted(before)
        .ok_or_else(|| format!("`{kind}` needs a GUID in quotes, as in \"S-0002c90000000001\""))?;
    Ok(Line::Node { id: node(id)?, description: quoted(comment).unwrap_or_default() })
}

/// `[5][ext 3](portguid) "H-guid"[1](portguid)  # "node001 mlx5_0" lid 7 4xNDR`
fn port(line: &str) -> Result<Line<'_>, String> {
    let (before, comment) = line.split_once('#').unwrap_or((line, ""));
    let missing = || "expected a port and its peer, as in [5] \"S-0002c90000000001\"[3]".to_owned();
    let (own, rest) = before.split_once('"').ok_or_else(missing)?;
    let (peer, rest) = rest.split_once('"').ok_or_else(missing)?;
    let rate = match comment.rsplit_once('"') {
        Some((_, rate)) => rate,
        None => comment,
    };
    let gbit = rate.split_ascii_whitespace().find_map(gbit).ok_or_else(|| {
        "the cable has no width and rate such as 4xNDR; save the output of ibnetdiscover again, without changes"
            .to_owned()
    })?;
    Ok(Line::Port {
        port: bracketed(own)?,
        peer: node(peer)?,
        peer_port: bracketed(rest)?,
        description: quoted(comment).unwrap_or_default(),
        gbit,
    })
}

/// The text from the first to the last quote.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    Some(rest.rsplit_once('"')?.0)
}

fn node(text: &str) -> Result<NodeId, String> {
    let wrong = || format!("`{}` is not a node, such as S-0002c90000000001", excerpt(text));
    let (kind, guid) = text.split_once('-').ok_or_else(wrong)?;
    let kind = match kind {
        "S" => NodeKind::Switch,
        "H" => NodeKind::Adapter,
        "R" => NodeKind::Router,
        _ => return Err(wrong()),
    };
    let digits = guid.strip_prefix("0x").unwrap_or(guid);
    match digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(NodeId { kind, guid: u64::from_str_radix(digits, 16).map_err(|_| wrong())? }),
        false => Err(wrong()),
    }
}

/// The number between the first brackets.
fn bracketed(text: &str) -> Result<u32, String> {
    let inside =
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inside, _)| inside.trim());
    match inside.and_then(|number| number.parse().ok()) {
        Some(port @ 1..=PORT_MAX) => Ok(port),
        _ => Err(format!("expected the number of a port in brackets, from 1 to {PORT_MAX}")),
    }
}

/// The data rate of a link such as `4xNDR`, in Gb/s.
fn gbit(text: &str) -> Option<u32> {
    let (width, speed) = text.split_once('x')?;
    let width: u32 = width.parse().ok().filter(|width| [1, 2, 4, 8, 12].contains(width))?;
    // Per lane, after the line code: 8b/10b up to QDR, 64b/66b from FDR10.
    let of_four = match speed {
        "SDR" => 8,
        "DDR" => 16,
        "QDR" => 32,
        "FDR10" => 40,
        "FDR" => 54,
        "EDR" => 100,
        "HDR" => 200,
        "NDR" => 400,
        "XDR" => 800,
        _ => return None,
    };
    Some((of_four * width / 4).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(kind: NodeKind, guid: u64) -> NodeId {
        NodeId { kind, guid }
    }

    #[test]
    fn lines_of_both_ends() {
        let switch = "[1]\t\"H-00000000000000a1\"[2](a2) \t\t# \"node001 mlx5_0\" lid 7 4xNDR";
        assert_eq!(
            parse(switch),
            Ok(Line::Port {
                port: 1,
                peer: id(NodeKind::Adapter, 0xa1),
                peer_port: 2,
                description: "node001 mlx5_0",
                gbit: 400,
            })
        );
        let adapter = "[2](a2) \t\"S-00000000000000f0\"[1][ext 7]\t\t# lid 7 lmc 0 \"a \"b\" c\" lid 3 2xHDR s=4 w=2 v=4";
        assert_eq!(
            parse(adapter),
            Ok(Line::Port {
                port: 2,
                peer: id(NodeKind::Switch, 0xf0),
                peer_port: 1,
                description: "a \"b\" c",
                gbit: 100,
            })
        );
        let header =
            "Switch\t65 \"S-0x00000000000000f0\"\t\t# \"MF0;leaf01:MQM9700/U1\" enhanced port 0 lid 3 lmc 0";
        assert_eq!(
            parse(header),
            Ok(Line::Node { id: id(NodeKind::Switch, 0xf0), description: "MF0;leaf01:MQM9700/U1" })
        );
        for other in ["", "# x", "vendid=0x2c9", "Chassis 1 (guid 0x1)", "ibwarn: [1] mad_rpc: timeout"] {
            assert_eq!(parse(other), Ok(Line::Other), "{other}");
        }
    }

    #[test]
    fn rates_follow_width_and_speed() {
        for (text, expected) in [
            ("4xSDR", Some(8)),
            ("4xFDR10", Some(40)),
            ("4xFDR", Some(54)),
            ("4xEDR", Some(100)),
            ("2xNDR", Some(200)),
            ("4xXDR", Some(800)),
            ("12xXDR", Some(2400)),
            ("1xSDR", Some(2)),
            ("3xNDR", None),
            ("4x???", None),
            ("xNDR", None),
            ("4xndr", None),
        ] {
            assert_eq!(gbit(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_are_refused() {
        for (line, reason) in [
            ("hello", "not a line"),
            ("Switch 36", "needs a GUID"),
            ("Ca 1 \"X-1\"", "is not a node"),
            ("Ca 1 \"H-xyz\"", "is not a node"),
            ("Ca 1 \"H-11112222333344445\"", "is not a node"),
            ("[1] nothing", "a port and its peer"),
            ("[0] \"S-1\"[1] # \"x\" lid 1 4xNDR", "from 1 to 254"),
            ("[1] \"S-1\" # \"x\" lid 1 4xNDR", "from 1 to 254"),
            ("[1] \"S-1\"[1] # \"x\" lid 1", "such as 4xNDR"),
            ("[1] \"S-1\"[1] # \"4xNDR\" lid 1", "such as 4xNDR"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
