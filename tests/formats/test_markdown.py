from lowerdeck.formats.markdown import plain_text


def test_what_means_something_is_escaped_and_lines_are_joined() -> None:
    assert plain_text("a_b | <c>\n[d](e) `f` #1 *g*") == r"a\_b \| \<c\> \[d\](e) \`f\` \#1 \*g\*"
