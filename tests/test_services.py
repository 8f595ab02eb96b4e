"""What actors share: ids, and the tools that requests offer."""

import uuid

from roder_trio.actors._services import new_id


def test_ids_are_random_uuids_in_their_usual_text() -> None:
    made = [new_id() for _ in range(1000)]
    assert len(set(made)) == len(made)
    for text in made:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)
