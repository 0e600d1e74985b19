#!/usr/bin/env node
// tools/render_chats.js - what a chat template makes of tests/data/chat/conversations.json.
//
//     npm install @huggingface/jinja            (anywhere; NODE_PATH=that folder/node_modules)
//     tools/render_chats.js FAMILY TEMPLATE BOS EOS > tests/data/chat/FAMILY.json
//
// TEMPLATE is a .jinja file or a tokenizer_config.json; BOS and EOS are the texts that the model's
// tokenizer_config.json gives for bos_token and eos_token. Each conversation is rendered without
// and with the opening of an answer; one that the template refuses has "error" in place of "text".
// The template's SHA-256 says which text it was.
"use strict";
const { createHash } = require("node:crypto");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { Template } = require("@huggingface/jinja");

function readTemplate(path) {
    const text = readFileSync(path, "utf8");
    if (!path.endsWith(".json")) return text;
    const found = JSON.parse(text).chat_template;
    if (typeof found === "string") return found;
    return found.find((item) => item.name === "default").template;
}

function render(template, conversation, generate, bos, eos) {
    const messages = conversation.map(([role, content]) => ({ role, content }));
    const row = { messages: conversation, generate };
    try {
        row.text = template.render({
            messages,
            add_generation_prompt: generate,
            bos_token: bos,
            eos_token: eos,
        });
    } catch (error) {
        row.error = error.message;
    }
    return row;
}

const [family, path, bos, eos] = process.argv.slice(2);
if (eos === undefined) {
    console.error("usage: tools/render_chats.js FAMILY TEMPLATE BOS EOS");
    process.exit(2);
}
const data = join(__dirname, "..", "tests", "data", "chat");
const conversations = JSON.parse(readFileSync(join(data, "conversations.json"), "utf8"));
const source = readTemplate(path);
const template = new Template(source);
const rows = conversations.flatMap((conversation) =>
    [false, true].map((generate) => render(template, conversation, generate, bos, eos)),
);
const sha256 = createHash("sha256").update(source).digest("hex");
console.log(`{"family":"${family}","template_sha256":"${sha256}","rows":[`);
console.log(rows.map((row) => JSON.stringify(row)).join(",\n"));
console.log("]}");
