// Runs the commands of docs/guides/run-gguf.md for llama.cpp: a plain llama-server gives the trainer's answers.
import assert from 'node:assert/strict'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { openGuide } from '../support/guide.ts'
import { meanDifference, post, type Reference, serviceWithTickets } from './reference.ts'

const programs = [path.join(root, '.local/peers/llama.cpp/build/bin'), path.join(root, '.local/python/bin')]
let service: Awaited<ReturnType<typeof serviceWithTickets>>
before(async () => {
  service = await serviceWithTickets()
})
after(() => service?.stop())

/** Compares one answer of the server: the prompt exactly, then tokens up to the first difference. */
async function compare(url: string, { messages, prompt_tokens, answer_tokens, log_probabilities }: Reference) {
  const { prompt } = await post(`${url}/apply-template`, { messages })
  const { tokens } = await post(`${url}/tokenize`, { content: prompt, add_special: true, parse_special: true })
  assert.deepEqual(tokens, prompt_tokens, 'the file’s template and tokenizer give the training’s tokens')
  const body = { messages, temperature: 0, max_tokens: answer_tokens.length, logprobs: true, cache_prompt: false }
  const { choices } = await post(`${url}/v1/chat/completions`, body)
  const generated = choices[0].logprobs.content as { id: number; logprob: number }[]
  const firstDifference = answer_tokens.findIndex((token, index) => generated[index]?.id !== token)
  const shared = firstDifference < 0 ? answer_tokens.length : firstDifference
  const pairs = generated
    .slice(0, shared)
    .map(({ logprob }, index): [number, number] => [logprob, log_probabilities[index]!])
  return { tokens: answer_tokens.length, shared, pairs }
}

/**
 * Largest difference of log-probabilities in nats over the shared tokens, and smallest share of these. Measured: 0.0002
 * and all in 16 bits, 0.004 and 0.79 in 8 bits, 0.007 and 0.79 for the adapter on the service's 4-bit base, which
 * processors compute differently.
 */
const most = {
  Q8_0: { difference: 0.05, shared: 0.4 },
  F16: { difference: 0.005, shared: 0.75 },
  adapter: { difference: 0.05, shared: 0.4 },
}

for (const quantization of ['Q8_0', 'F16'] as const)
  test(`in ${quantization}: the merged file, then the adapter on the base`, { timeout: 600_000 }, async (context) => {
    const guide = openGuide('run-gguf.md', {
      section: 'llama.cpp',
      url: service.url,
      key: service.key,
      programs,
      replaced: [['Q8_0 -o', `${quantization} -o`]],
    })
    const answers: string[] = []
    try {
      for await (const { command, stdout, url } of guide.steps()) {
        if (command.startsWith('curl')) answers.push(JSON.parse(stdout).choices[0].message.content)
        if (command.startsWith('llama-cli')) answers.push(stdout)
        if (!command.startsWith('llama-server')) continue
        const rows = []
        for (const row of service.reference()) rows.push(await compare(url!, row))
        const difference = meanDifference(rows.flatMap(({ pairs }) => pairs))
        const share =
          rows.reduce((sum, { shared }) => sum + shared, 0) / rows.reduce((sum, { tokens }) => sum + tokens, 0)
        context.diagnostic(
          `${command}: ${share.toFixed(3)} of the tokens shared, ${difference.toFixed(4)} nats apart on these`,
        )
        const bound = most[command.includes('--lora') ? 'adapter' : quantization]
        assert.ok(difference <= bound.difference, `${command}: ${difference} nats apart`)
        assert.ok(share >= bound.shared, `${command}: ${share} of the tokens shared`)
      }
      const [cli, server, adapter] = answers
      assert.ok(server!.length > 0 && adapter!.length > 0)
      assert.ok(cli!.includes(server!.trim()), `llama-cli says what llama-server says: ${cli}`)
    } finally {
      await guide.close()
    }
  })
