import pytest, time
from safety.models import User
@pytest.mark.parametrize("n", range(4))
def test_flush(transactional_db, n):
    User.objects.create(username=f"a{n}")
