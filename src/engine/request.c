/* engine/request.c - one request and its life. */
#include "engine/request.h"

#include <string.h>

#include "base/status.h"

static uint64_t request_bytes(uint32_t n_choices)
{
    return sizeof(sheaf__request) + (uint64_t)n_choices * sizeof(sheaf__choice);
}

static sheaf_status copy_ids(sheaf__choice *choice, const int32_t *ids, sheaf__memory *memory)
{
    void *grown = NULL;
    SHEAF__TRY(sheaf__memory_grow(memory, &grown, &choice->ids_capacity, choice->n_ids + 1ull,
                                  sizeof *ids));
    choice->ids = grown;
    memcpy(choice->ids, ids, choice->n_ids * sizeof *ids);
    return SHEAF_OK;
}

/* What the ask says of every choice alike. */
static sheaf_status copy_ask(sheaf__request *request, const sheaf__ask *ask,
                             sheaf__memory *memory)
{
    request->ctx = ask->ctx;
    request->n_prompt = ask->n_tokens;
    request->n_choices = ask->n_choices;
    request->max_tokens = ask->max_tokens;
    request->kind = ask->kind;
    request->ignore_eos = ask->ignore_eos;
    request->logprobs = ask->logprobs;
    request->prompt_logprobs = ask->prompt_logprobs;
    request->told_prompt = 1;
    request->n_top = ask->n_top;
    request->presence_penalty = ask->presence_penalty;
    request->frequency_penalty = ask->frequency_penalty;
    request->wants_pin = ask->pin;
    request->pin_flags = ask->pin_flags;
    request->pin_owner = ask->pin_owner;
    request->priority = ask->priority;
    request->sampler = ask->sampler;
    request->session = ask->session;
    if (ask->n_bias == 0) return SHEAF_OK;
    request->bias = sheaf__memory_alloc(memory, ask->n_bias, sizeof *ask->bias);
    if (request->bias == NULL) return SHEAF_E_NO_MEMORY;
    request->n_bias = ask->n_bias;
    memcpy(request->bias, ask->bias, ask->n_bias * sizeof *ask->bias);
    return SHEAF_OK;
}

sheaf_status sheaf__request_create(const sheaf__ask *ask, const sheaf_key *space,
                                   sheaf__memory *memory, sheaf__request **out)
{
    uint32_t n_choices = ask->n_choices;
    sheaf__request *request = sheaf__memory_alloc(memory, 1, request_bytes(n_choices));
    if (request == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__list_init(&request->link);
    request->space = *space;
    sheaf_status st = copy_ask(request, ask, memory);
    for (uint32_t i = 0; i < n_choices; i++) {
        sheaf__choice *choice = &request->choices[i];
        choice->request = request;
        choice->index = i;
        choice->state = i == 0 ? SHEAF__CHOICE_WAITING : SHEAF__CHOICE_HELD;
        choice->n_ids = ask->n_tokens;
    }
    if (st == SHEAF_OK) st = copy_ids(request->choices, ask->tokens, memory);
    if (st != SHEAF_OK) {
        sheaf__request_destroy(request, memory);
        return st;
    }
    *out = request;
    return SHEAF_OK;
}

void sheaf__request_destroy(sheaf__request *request, sheaf__memory *memory)
{
    for (uint32_t i = 0; i < request->n_choices; i++) {
        sheaf__choice *choice = &request->choices[i];
        SHEAF__ASSERT(choice->state != SHEAF__CHOICE_RUNNING && choice->ticket == 0);
        sheaf__memory_free(memory, choice->ids, choice->ids_capacity, sizeof *choice->ids);
    }
    sheaf__memory_free(memory, request->bias, request->n_bias, sizeof *request->bias);
    sheaf__memory_free(memory, request, 1, request_bytes(request->n_choices));
}

sheaf_status sheaf__choice_take_prompt(sheaf__choice *choice, sheaf__memory *memory)
{
    return copy_ids(choice, choice->request->choices[0].ids, memory);
}

sheaf_status sheaf__choice_push(sheaf__choice *choice, int32_t token, sheaf__memory *memory)
{
    void *ids = choice->ids;
    SHEAF__TRY(sheaf__memory_grow(memory, &ids, &choice->ids_capacity, choice->n_ids + 1ull,
                                  sizeof *choice->ids));
    choice->ids = ids;
    choice->ids[choice->n_ids++] = token;
    return SHEAF_OK;
}

uint32_t sheaf__choice_left(const sheaf__choice *choice)
{
    if (choice->state != SHEAF__CHOICE_RUNNING) return choice->n_ids;
    return choice->n_ids - sheaf__kv_length(&choice->kv);
}

bool sheaf__choice_tells_prompt(const sheaf__choice *choice)
{
    const sheaf__request *request = choice->request;
    return choice->index == 0 && request->prompt_logprobs &&
           request->told_prompt < request->n_prompt;
}

sheaf_prompt sheaf__choice_prompt(const sheaf__choice *choice)
{
    const sheaf__request *request = choice->request;
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.tokens = choice->ids;
    prompt.n_tokens = choice->n_ids;
    prompt.space = &request->space;
    prompt.session = request->session;
    prompt.priority = request->priority;
    prompt.ticket = choice->ticket;
    return prompt;
}

int sheaf__choice_order(const sheaf__choice *a, const sheaf__choice *b)
{
    const sheaf__request *ra = a->request, *rb = b->request;
    if (ra->priority != rb->priority) return ra->priority > rb->priority ? -1 : 1;
    if (ra->id != rb->id) return ra->id < rb->id ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}
