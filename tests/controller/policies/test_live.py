import gc

from controller.policies.live import LiveValues


class Request:
    pass


def test_mean_is_over_the_newest_number_of_each_request() -> None:
    values = LiveValues()
    assert (len(values), values.mean) == (0, 0.0)
    one, other = Request(), Request()
    values.set(one, 5.0)
    values.set(other, 1.0)
    values.set(one, 3.0)
    assert (len(values), values.mean) == (2, 2.0)
    values.leave(other)
    values.leave(other)
    assert (len(values), values.mean) == (1, 3.0)


def test_collected_requests_do_not_count() -> None:
    values = LiveValues()
    stays = Request()
    values.set(stays, 2.0)
    for number in range(50):
        goes = Request()
        values.set(goes, float(number))
        del goes
        gc.collect(0)
    assert (len(values), values.mean) == (1, 2.0)


def test_requests_far_behind_do_not_count_until_they_are_back() -> None:
    values = LiveValues()
    hangs, one, other = Request(), Request(), Request()
    values.set(hangs, 9.0)
    for _ in range(3 * 8 + 64):
        values.set(one, 1.0)
        values.set(other, 3.0)
    assert (len(values), values.mean) == (2, 2.0)
    values.set(hangs, 5.0)
    assert (len(values), values.mean) == (3, 3.0)


def test_slow_requests_among_many_count() -> None:
    values = LiveValues()
    requests = [Request() for _ in range(50)]
    for lap in range(40):
        for index, request in enumerate(requests):
            # The first has a fifth of the others' pace.
            if index or lap % 5 == 0:
                values.set(request, 1.0)
        assert len(values) == 50


def test_without_requests_nothing_is_left_of_rounding() -> None:
    values = LiveValues()
    requests = [Request() for _ in range(3)]
    for request, number in zip(requests, (0.1, 0.2, 0.3), strict=True):
        values.set(request, number)
    for request in requests:
        values.leave(request)
    assert values.mean == 0.0
