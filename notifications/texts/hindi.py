"""Hindi texts, always UCS-2. Times, dates, coordinates and digits stay ASCII."""

from typing import Final

from notifications.texts.facts import ALERTS, Kind
from notifications.texts.wording import DltWording, PositionWording, Wording

_ALERT = "{brand}{again}: {name}{event} {position}{call}{dial}{caution}{meeting}{word}{map} {link}"
_PRESSED = (" ने {time}, {date} को SOS दबाया।", " ने {time} पर SOS दबाया।", " {clock}।")
_DLT_SOS = "CasualMeet SOS {again}: {name} ने {event} को SOS दबाया। {position}: {point}। "
_DLT_END = "112 मिलाएँ। मैप: {link}"


def _repeated(number: int, _kind: Kind) -> str:
    return f", दोबारा ({number})"


def _repeated_short(number: int, kind: Kind) -> str:
    return _repeated(number, kind) if kind in ALERTS else f" ({number})"


_DLT: Final = DltWording(
    frames={
        Kind.MISSED_CHECK_IN: (
            "CasualMeet सुरक्षा {again}: {name} ने {event} चेक-इन नहीं किया। {position}: {point}। कॉल {phone}। " + _DLT_END
        ),
        Kind.SOS: _DLT_SOS + _DLT_END,
        Kind.DURESS: _DLT_SOS + "उनके फ़ोन पर कॉल या SMS न करें। " + _DLT_END,
        Kind.UPDATE: ("SOS {reference} अपडेट (नया अलार्म नहीं): {name}, {position}: {point}। मैप: {link}"),
        Kind.ALL_CLEAR: "CasualMeet सब ठीक: {name} सुरक्षित, {event}। {reference} बंद।",
        Kind.CHECK_PROMPT: ("CasualMeet: {minutes} बाकी ({event})। SAFE <pin>, MORE 30 या ऐप।"),
        Kind.INVITATION: ("CasualMeet {again}: {name} का अनुरोध, भरोसेमंद संपर्क बनें: {link} अनजान? छोड़ दें।"),
        Kind.FAIL_SAFE: (
            "CasualMeet बैकअप {again}: {name} ने {event} तक चेक-इन नहीं किया, हमारी सेवा शायद बंद है। "
            "कॉल {phone}, नहीं तो 112 मिलाएँ। स्वचालित SMS, {reference}।"
        ),
        Kind.REPLY: "CasualMeet जवाब: {said}। ऐप या अलर्ट का पेज देखें।",
        Kind.RECONFIRM: ("CasualMeet {again}: {name} के भरोसेमंद संपर्क हैं, अब भी तैयार? {link} बंद: STOP।"),
        Kind.DIGEST: "CasualMeet कल: {said}। ऐप देखें।",
        Kind.SELF_TEST: "CasualMeet जाँच: {said}। कुछ न करें।",
    },
    first="अलर्ट",
    first_invitation="निमंत्रण",
    repeated_invitation=lambda number: f"निमंत्रण ({number})",
    first_question="सवाल",
    repeated_question=lambda number: f"सवाल ({number})",
    no_position="GPS नहीं, तय जगह",
    nowhere="पता नहीं",
    nobody="नहीं बताया",
    no_reference="अलर्ट",
    late=", {age} देर",
    located="स्थान{detail}",
    now="अब{detail}",
    seen="अंतिम स्थान {when}{detail}",
    undated="अंतिम स्थान{detail}",
)

HINDI: Final = Wording(
    gsm=False,
    unnamed="एक CasualMeet सदस्य",
    brand=" (CasualMeet)",
    frames={
        Kind.MISSED_CHECK_IN: "सुरक्षा अलर्ट" + _ALERT,
        Kind.SOS: "SOS" + _ALERT,
        Kind.DURESS: "SOS" + _ALERT,
        Kind.UPDATE: "SOS{reference} अपडेट{calm}{again}: {name} {position}{map} {link}",
        Kind.ALL_CLEAR: "सब ठीक{brand}{again}: {name}{event}{closed}{unsure}",
        Kind.CHECK_PROMPT: ("CasualMeet{again}: {minutes} बाकी ({event})। SAFE <pin>, MORE 30 या ऐप।"),
        Kind.INVITATION: "CasualMeet{again}: {name}{ask} {link}{end}",
        Kind.FAIL_SAFE: (
            "CasualMeet बैकअप अलर्ट{again}: {name}{event}, हमारी सेवा शायद बंद है।{call}{dial} स्वचालित SMS{reference}।"
        ),
        Kind.REPLY: "{said}{again}",
        Kind.RECONFIRM: "CasualMeet{again}: {name}{ask} {link}{end}",
        Kind.DIGEST: "{said}{again}",
        Kind.SELF_TEST: "{said}{again}",
    },
    repeated=_repeated,
    repeated_short=_repeated_short,
    events={
        Kind.MISSED_CHECK_IN: (
            " ने {time}, {date} का चेक-इन नहीं किया{late}।",
            " ने {time} का चेक-इन नहीं किया।",
            " ने {clock} चेक-इन नहीं किया।",
        ),
        Kind.SOS: _PRESSED,
        Kind.DURESS: _PRESSED,
        Kind.ALL_CLEAR: (" सुरक्षित, {time} {how}।", " सुरक्षित, {clock} {how}।"),
        Kind.FAIL_SAFE: (
            " ने {time}, {date} तक चेक-इन नहीं किया",
            " ने {time} तक चेक-इन नहीं किया",
            " ने {clock} तक चेक-इन नहीं किया",
        ),
    },
    late=" (अलर्ट {age} देर से)",
    late_ages=("{} मिनट", "{} घंटे", "{} दिन"),
    alert_position=PositionWording(
        fresh="स्थान: {point}{detail}।",
        seen="अंतिम स्थान {when}: {point}{detail}।",
        undated="अंतिम स्थान: {point}{detail}।",
        bare="अंतिम स्थान {clock}: {point}।",
        none="GPS नहीं।",
        planned="GPS नहीं। तय जगह: {place}।",
    ),
    update_position=PositionWording(
        fresh="अब {point}{detail}।",
        seen="अंतिम स्थान {when}: {point}{detail}।",
        undated="अंतिम स्थान: {point}{detail}।",
        bare="{clock} {point}",
        none="{when}, GPS नहीं।",
        planned="{when}, GPS नहीं।",
    ),
    approximate="लगभग",
    metres="{} मी",
    kilometres="{} किमी",
    call=(" {phone} पर कॉल करें। जवाब न मिले तो", " कॉल {phone}।"),
    emergency=(" 112 पर फ़ोन कर यह पढ़ें।", " 112 मिलाएँ।"),
    caution={
        Kind.SOS: " शायद वे बोल न पाएँ।",
        Kind.DURESS: " उनके फ़ोन पर कॉल या SMS न करें।",
    },
    met=" मुलाक़ात: {met}।",
    met_at=" मुलाक़ात: {met}, {place}।",
    place=" तय जगह: {place}।",
    agreed_word=" आपका शब्द: {word}।",
    map=(" मैप, मदद करें तो बताएँ:", " मैप:"),
    update_of=(" {reference}",),
    no_new_alarm=" (नया अलार्म नहीं)",
    with_pin="PIN से",
    in_app="ऐप से",
    closed=(" अलर्ट {reference}{opened} बंद।", " {reference} बंद।"),
    closed_unnamed=" अलर्ट{opened} बंद।",
    opened=" ({opened})",
    unsure=" शक हो तो फ़ोन करें।",
    minutes="{} मिनट",
    under_a_minute="1 मिनट",
    their_phone="उन्हें करें",
    tracked=", {reference}",
    invitation_ask=(
        " का अनुरोध: उनके भरोसेमंद संपर्क बनें, संकट में आपको SMS मिलेगा:",
        " का अनुरोध: उनके भरोसेमंद संपर्क बनें:",
        " का अनुरोध, संपर्क बनें:",
    ),
    invitation_end=(" अनजान हों तो अनदेखा करें।", " अनजान? अनदेखा करें।"),
    reconfirm_ask=(
        " के आप भरोसेमंद संपर्क हैं। क्या अब भी तैयार हैं? बताएँ:",
        " के संपर्क हैं, अब भी तैयार? बताएँ:",
        " के संपर्क, अब भी?",
    ),
    reconfirm_end=" बंद: STOP।",
    dlt=_DLT,
)
