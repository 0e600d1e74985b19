#!/usr/bin/env bash
# tests/cli/e2e_bad_files.sh - files that are absent, cut, hostile or of another kind are answered with one sentence
# that names the file and the field, exit code 1, and nothing on standard output.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=$(readlink -f "${SHEAF_BUILD_DIR:?}/bin/sheaf")
demo=$PWD/models/sheaf-demo
fixture=$PWD/tests/data/fixtures/llama3-tied
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fresh() { # directory with links to its files in m, for one to be replaced
    local file
    rm -rf m
    mkdir m
    for file in "$1"/*; do ln -s "$file" m/; done
}

refused() { # name text arguments...: exit code 1, one line on standard error that begins "sheaf COMMAND: text"
    local name=$1 text=$2 code=0
    shift 2
    timeout 60 "$sheaf" "$@" >out 2>err </dev/null || code=$?
    if [ $code = 1 ] && [ "$(wc -l <err)" = 1 ] && [ ! -s out ] && ! LC_ALL=C grep -q '[[:cntrl:]]' err &&
        [[ "$(cat err)" = "sheaf $1: $text"* ]]; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $code, wanted: sheaf $1: $text" "$(cat -v err)"
    fi
}

each_broken() { # directory file text-when-absent command...: the file is absent, then holds what it must not
    local dir=$1 file=$2 absent=$3 kind
    shift 3
    fresh "$dir"
    rm m/"$file"
    refused "$file.absent" "$absent" "$@"
    mkfifo m/"$file"
    refused "$file.is_a_fifo" "m/$file: not a regular file" "$@"
    rm m/"$file"
    mkdir m/"$file"
    refused "$file.is_a_directory" "m/$file: not a regular file" "$@"
    rmdir m/"$file"
    ln -s "$file" m/"$file"
    [ "${absent#m:}" != "$absent" ] || refused "$file.is_a_link_to_itself" "m/$file: " "$@"
    rm m/"$file"
    for kind in empty cut bad_utf8 deep noise; do
        case $kind in
        empty) : >m/"$file" ;;
        cut) head -c $(($(stat -L -c %s "$dir/$file") / 2)) "$dir/$file" >m/"$file" ;;
        bad_utf8) printf '{"a\377":1}' >m/"$file" ;;
        deep) printf '{"a":%0100000d' 0 | tr 0 '[' >m/"$file" ;;
        noise) seq 5000 | tr '\n0-9' '\0\33\200-\210' >m/"$file" ;;
        esac
        refused "$file.is_$kind" "m/$file: " "$@"
    done
}

each_broken "$demo" config.json "m/config.json: No such file" inspect -m m
each_broken "$demo" model.safetensors "m: holds neither model.safetensors nor" inspect -m m
each_broken "$demo" tokenizer.json "m/tokenizer.json: No such file" tokenize -m m
each_broken "$demo" tokenizer_config.json "m: has no chat template" run -m m --chat -p Hello
fresh "$demo"
rm m/generation_config.json
printf '{"eos_token_id":[4095,' >m/generation_config.json
refused a_cut_generation_config_is_named "m/generation_config.json: line 1: " inspect -m m

edited() { # name text file sed-expression command...: refused with the file edited
    local name=$1 text=$2 file=$3
    rm m/"$file"
    LC_ALL=C sed "$4" "$from/$file" >m/"$file"
    shift 4
    refused "$name" "m/$file: $text" "$@"
}

from=$demo
fresh "$demo"
config() { edited "$1" "$2" config.json "$3" inspect -m m; }
config a_size_is_text 'hidden_size must be a whole number from 1 to 131072, found "big"' 's/\(hidden_size": \)[0-9]*/\1"big"/'
config a_size_is_negative 'hidden_size must be a whole number' 's/\(hidden_size": \)[0-9]*/\1-256/'
config a_size_is_a_fraction 'hidden_size must be a whole number' 's/\(hidden_size": \)[0-9]*/\1256.5/'
config a_size_is_beyond_64_bits 'line ' 's/\(hidden_size": \)[0-9]*/\199999999999999999999/'
config a_size_is_the_largest_integer 'hidden_size must be' 's/\(hidden_size": \)[0-9]*/\19223372036854775807/'
config a_size_is_missing 'hidden_size is missing' 's/hidden_size/hidden_sighs/'
config a_field_is_given_twice "line 11: duplicate object key near '\"vocab_size\"'" 's/ "hidden_size"/"vocab_size":1,"vocab_size"/'
config there_are_no_layers 'num_hidden_layers must be' 's/\(num_hidden_layers": \)[0-9]*/\10/'
config heads_do_not_divide 'num_attention_heads (4) must be a multiple of num_key_value_heads (3)' \
    's/\(num_key_value_heads": \)[0-9]*/\13/'
config an_epsilon_is_infinite 'line ' 's/\(rms_norm_eps": \)[0-9e-]*/\11e999/'
config a_base_of_rotation_is_an_object 'rope_theta must be a number from 1 to 1e+12, found an object' \
    's/\(rope_theta": \)[0-9.]*/\1{}/'
config a_switch_is_text 'tie_word_embeddings must be true or false, found "yes"' 's/\(tie_word_embeddings": \)true/\1"yes"/'
config a_token_is_beyond_the_vocabulary 'eos_token_id must be a token id (below vocab_size, 4096)' \
    's/\(eos_token_id": \)[0-9]*/\14096/'
config an_architecture_is_unknown 'architecture "GPT2LMHeadModel" is not known here; known: LlamaForCausalLM, ' \
    's/Qwen3ForCausalLM/GPT2LMHeadModel/'
config a_name_steers_no_terminal 'architecture "\u001B[31m" is not known here' 's/Qwen3ForCausalLM/\\u001b[31m/'

another() { # name text sed-expression: config.json says another network than the weights are
    rm m/config.json
    sed "$3" "$demo/config.json" >m/config.json
    refused "$1" "m/model.safetensors: $2" inspect -m m
}
another weights_of_another_architecture_lack_a_tensor "tensor model.layers.0.self_attn.q_proj.bias is missing" \
    s/Qwen3ForCausalLM/Qwen2ForCausalLM/
another weights_of_another_architecture_have_one_too_many \
    "tensor model.layers.0.self_attn.k_norm.weight has no place in the network that config.json describes" \
    s/Qwen3ForCausalLM/LlamaForCausalLM/
another weights_of_more_layers_are_not_cut "tensor model.layers.7.input_layernorm.weight has no place" \
    's/\(num_hidden_layers": \)[0-9]*/\17/'
another weights_of_fewer_layers_are_named "tensor model.layers.8.input_layernorm.weight is missing" \
    's/\(num_hidden_layers": \)[0-9]*/\19/'
another weights_of_another_size_are_named "model.embed_tokens.weight has shape [4096, 256], wanted [16777216, 256]" \
    's/\(vocab_size": \)[0-9]*/\116777216/'

fresh "$demo"
tokens() { edited "$1" "$2" tokenizer.json "$3" tokenize -m m; }
tokens a_model_of_tokens_is_unknown 'model type WordPiece is not known' 's/"type": "BPE"/"type": "WordPiece"/'
tokens a_type_is_a_number 'model.type must be a string, found 7' 's/"type": "BPE"/"type": 7/'
tokens there_is_no_model 'model is missing' 's/"model": {/"modal": {/'
tokens a_vocabulary_is_a_number 'model.vocab is no object' 's/"vocab": {/"vocab": 7, "x": {/'
tokens merges_are_an_object 'model.vocab is no object, or model.merges no list' 's/"merges": \[/"merges": {}, "x": [/'
tokens an_id_is_negative 'model.vocab: zzz has id -1' 's/"vocab": {/"vocab": {"zzz": -1,/'
tokens an_id_is_huge 'id 2000000000 among only 4097 tokens' 's/"vocab": {/"vocab": {"zzz": 2000000000,/'
tokens an_id_stands_twice 'model.vocab: id 5 stands for two tokens' 's/"vocab": {/"vocab": {"zzz": 5,/'
tokens a_merge_makes_no_token 'model.merges[0] names or makes a token that is not in the vocabulary: nopenope' \
    's/"merges": \[/"merges": ["nope nope",/'
tokens a_merge_is_a_number 'model.merges[0] is not two tokens' 's/"merges": \[/"merges": [7,/'
tokens a_merge_steers_no_terminal 'model.merges[0] names or makes a token that is not in the vocabulary: ?[31mx' \
    's/"merges": \[/"merges": ["\\u001b[31m x",/'
tokens an_added_token_is_a_number 'added_tokens[0] has no content, or no id' 's/"added_tokens": \[/"added_tokens": [7,/'
tokens an_added_token_breaks_no_line 'added token a?b has id 4, which is taken' \
    's/"added_tokens": \[/"added_tokens": [{"id":4,"content":"a\\nb"},/'
tokens a_pattern_is_broken 'pattern refused at 2: ' 's/"Regex": "[^"]*"/"Regex": "(("/'
tokens a_decoder_is_unknown 'decoder.Nope is not known' 's/"decoder": {/"decoder": {"type":"Nope"}, "x": {/'

fresh "$demo"
chat() { edited "$1" "$2" tokenizer_config.json "$3" run -m m --chat -p Hello; }
chat a_template_is_a_number 'chat_template must be a text or a list' 's/"chat_template": "/"chat_template": 7, "x": "/'
chat a_default_template_is_a_list 'chat_template must be a text or a list of named texts' \
    's/"chat_template": "/"chat_template": [{"name":"default","template":[]}], "x": "/'
chat a_template_is_unknown 'the chat template trims messages, which is not known here; name a known one with --chat' \
    "s/message\['content'\]/message['content'] | trim/"
fresh "$demo"
printf '{{ messages }}' >m/chat_template.jinja
refused a_template_file_is_unknown "m/chat_template.jinja: the chat template has none of <|im_start|>" run -m m --chat -p Hello

from=$fixture
fresh "$fixture"
tensors() { edited "$1" "$2" model.safetensors "1s/$3/" inspect -m m; }
tensors a_shape_is_another "model.embed_tokens.weight has shape [64, 320], wanted [320, 64]" '\[320,64\]/[64,320]'
tensors a_shape_is_negative 'tensor "model.embed_tokens.weight": a size in shape' '\[320,64\]/[-20,64]'
tensors a_shape_is_a_fraction 'tensor "model.embed_tokens.weight": a size in shape' '\[320,64\]/[320.64]'
tensors a_type_is_unknown 'tensor "model.embed_tokens.weight": dtype is missing or not known' BF16/XF16
tensors a_type_holds_no_weights 'model.embed_tokens.weight holds I16, wanted F32, F16 or BF16' '"BF16"/ "I16"'
tensors tensors_overlap 'tensor "model.layers.0.input_layernorm.weight": overlaps another tensor' '\[0,40960\]/[4,40964]'
tensors a_tensor_is_too_long 'tensor "model.embed_tokens.weight": data_offsets hold another number of bytes' \
    '\[0,40960\]/[0,99999]'
tensors a_tensor_is_given_twice 'line 1: duplicate object key at byte ' layers.1.input/layers.0.input
tensors a_tensor_is_missing 'tensor model.embed_tokens.weight is missing' embed_tokens/embed_tokenz
tensors metadata_is_a_list 'tensor "__metadata__": must be an object' '{"format":"pt"}/[             ]'

header() { # name text length-as-8-escapes
    rm m/model.safetensors
    { printf '%b' "$3"; tail -c +9 "$fixture/model.safetensors"; } >m/model.safetensors
    refused "$1" "m/model.safetensors: $2" inspect -m m
}
header a_header_of_no_bytes "the header must begin with {" '\0\0\0\0\0\0\0\0'
header a_header_beyond_the_file "the header claims 1099511627776 bytes; the file has " '\0\0\0\0\0\1\0\0'
header a_header_of_2_to_the_63 "the header claims 9223372036854775808 bytes; " '\0\0\0\0\0\0\0\0200'
header a_header_of_all_ones "the header claims 18446744073709551615 bytes; " '\0377\0377\0377\0377\0377\0377\0377\0377'

rm m/model.safetensors
index() { # name text json
    printf '%s' "$3" >m/model.safetensors.index.json
    refused "$1" "$2" inspect -m m
}
index=m/model.safetensors.index.json
index an_index_without_a_map "$index: weight_map is missing" '{}'
index an_index_whose_map_is_a_number "$index: weight_map must be an object, found 7" '{"weight_map":7}'
index an_index_that_leads_out "$index: weight_map: a shard must be a plain file name" '{"weight_map":{"a":"../x"}}'
index an_index_of_an_absolute_path "$index: weight_map: a shard must be" '{"weight_map":{"a":"/etc/passwd"}}'
index an_index_of_an_absent_shard "m/x: No such file" '{"weight_map":{"a":"x"}}'
index an_index_steers_no_terminal "m/?[31m: No such file" '{"weight_map":{"a":"\u001b[31m"}}'

refused a_file_for_a_directory "$demo/config.json/config.json: Not a directory" inspect -m "$demo/config.json"
refused a_path_that_is_too_long_keeps_the_reason "..." inspect -m "$(printf '%0300d' 0)"
tap_equal "and_names_it" "/config.json: File name too long" "$(sed 's/.*0//' err)"
refused a_prompt_without_end_is_refused "/dev/zero: over 256 MiB, the most allowed" run -m "$demo" -f /dev/zero
refused a_directory_for_a_prompt "$work: Is a directory" run -m "$demo" -f "$work"
mkfifo queue
refused keys_and_values_go_into_no_fifo "queue: not a regular file" run -m "$demo" -p Hello -n 1 --save-kv queue
refused keys_and_values_go_into_no_device "/dev/full: not a regular file" run -m "$demo" -p Hello -n 1 --save-kv /dev/full
refused keys_and_values_go_into_no_directory "$work: Is a directory" run -m "$demo" -p Hello -n 1 --save-kv "$work"
refused keys_and_values_come_from_no_fifo "queue: not a regular file" run -m "$demo" -p Hello -n 1 --load-kv queue
refused keys_and_values_come_from_no_model "$demo/config.json: " run -m "$demo" -p Hello -n 1 --load-kv "$demo/config.json"
refused chats_of_the_demo_are_absent "no-such: No such file" demo -m "$demo" --eval no-such
printf '{"group":"shared","messages":7}\n' >chats
refused chats_of_the_demo_are_broken "chats: a chat without messages or expected answer" demo -m "$demo" --eval chats
tap_end
