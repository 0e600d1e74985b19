/* base/list.h. */
#include "testing.h"

#include "base/list.h"

typedef struct item {
    int value;
    sheaf__list link;
} item;

static void expect(const sheaf__list *list, const char *values)
{
    char forward[32] = "", backward[32] = "";
    for (const sheaf__list *n = list->next; n != list; n = n->next)
        forward[strlen(forward)] = (char)SHEAF__CONTAINER(n, item, link)->value;
    for (const sheaf__list *n = list->prev; n != list; n = n->prev) {
        memmove(backward + 1, backward, strlen(backward));
        backward[0] = (char)SHEAF__CONTAINER(n, item, link)->value;
    }
    assert_string_equal(forward, values);
    assert_string_equal(backward, values);
    assert_int_equal(sheaf__list_empty(list), values[0] == '\0');
}

static void insertion_and_removal_keep_the_order(void **state)
{
    (void)state;
    sheaf__list list;
    item a = {.value = 'a'}, b = {.value = 'b'}, c = {.value = 'c'};
    sheaf__list_init(&list);
    expect(&list, "");
    sheaf__list_insert(&list, &a.link);
    sheaf__list_insert(&list, &c.link);
    sheaf__list_insert(&c.link, &b.link);
    expect(&list, "abc");
    sheaf__list_remove(&b.link);
    expect(&list, "ac");
    sheaf__list_insert(list.next, &b.link);
    expect(&list, "bac");
    sheaf__list_remove(&a.link);
    sheaf__list_remove(&b.link);
    sheaf__list_remove(&c.link);
    expect(&list, "");
}

static void removing_twice_is_harmless(void **state)
{
    (void)state;
    sheaf__list list;
    item a = {.value = 'a'}, b = {.value = 'b'};
    sheaf__list_init(&list);
    sheaf__list_insert(&list, &a.link);
    sheaf__list_insert(&list, &b.link);
    sheaf__list_remove(&a.link);
    sheaf__list_remove(&a.link);
    assert_true(sheaf__list_empty(&a.link));
    expect(&list, "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(insertion_and_removal_keep_the_order),
        cmocka_unit_test(removing_twice_is_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
