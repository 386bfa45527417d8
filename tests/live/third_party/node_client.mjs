// The official Node SDK against `blb proxy`: one JSON object in the environment variable REQUEST, one on stdout.
import OpenAI from "openai";

const { base_url, model, suffixes, question, prompt, max_tokens } = JSON.parse(process.env.REQUEST);
const options = { baseURL: base_url, apiKey: "none", maxRetries: 0 };
const client = new OpenAI(options);

async function ask(model) {
  const body = { model, messages: [{ role: "user", content: question }], max_tokens, temperature: 0 };
  const created = await client.chat.completions.create(body);

  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    if (chunk.choices[0]?.delta?.content) streamed.push(chunk.choices[0].delta.content);
  }

  const legacy = await client.completions.create({ model, prompt, max_tokens, temperature: 0 });

  // The first answer is thrown away and becomes a 500, so that the SDK sends the same request again.
  let attempts = 0;
  const flaky = async (url, init) => {
    const response = await fetch(url, init);
    attempts += 1;
    if (attempts > 1) return response;
    await response.arrayBuffer();
    return new Response("{}", { status: 500, headers: { "retry-after-ms": "1" } });
  };
  const retried = await new OpenAI({ ...options, maxRetries: 1, fetch: flaky }).chat.completions.create(body);

  return {
    chat: created.choices[0].message.content,
    finish_reason: created.choices[0].finish_reason,
    streamed,
    completions: legacy.choices[0].text,
    retried: retried.choices[0].message.content,
    attempts,
  };
}

async function unknown() {
  try {
    await client.chat.completions.create({ model: `${model}@unknown`, messages: [] });
  } catch (error) {
    if (error instanceof OpenAI.NotFoundError) return { status: error.status, message: error.message };
    throw error;
  }
  throw new Error("an unknown alias was answered");
}

const answer = { unknown: await unknown() };
for (const suffix of suffixes) answer[suffix] = await ask(model + suffix);
console.log(JSON.stringify(answer));
