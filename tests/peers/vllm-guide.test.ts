// Runs the commands of docs/guides/run-huggingface.md for vLLM: a plain vLLM gives the trainer's answers.
import assert from 'node:assert/strict'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { openGuide } from '../support/guide.ts'
import { meanDifference, post, type Reference, serviceWithTickets } from './reference.ts'

let service: Awaited<ReturnType<typeof serviceWithTickets>>
before(async () => {
  service = await serviceWithTickets()
})
after(() => service?.stop())

const model = 'tickets'
/** The bound for 16 bits, vLLM's precision. */
const mostApart = 0.1

/** vLLM's log-probabilities of the trainer's tokens, and how many tokens the answers share. */
async function compare(url: string, { messages, prompt_tokens, answer_tokens, log_probabilities }: Reference) {
  const { tokens } = await post(`${url}/tokenize`, { model, messages, add_generation_prompt: true })
  assert.deepEqual(tokens, prompt_tokens, 'the folder’s template and tokenizer make the tokens of the training')
  const scored = await post(`${url}/v1/completions`, {
    model,
    prompt: [...prompt_tokens, ...answer_tokens],
    max_tokens: 1,
    temperature: 0,
    prompt_logprobs: 1,
  })
  const logprobs = (scored.choices[0].prompt_logprobs as (Record<string, { logprob: number }> | null)[]).slice(
    prompt_tokens.length,
  )
  const pairs = answer_tokens.map((token, index): [number, number] => [
    logprobs[index]![token]!.logprob,
    log_probabilities[index]!,
  ])
  const body = {
    model,
    prompt: prompt_tokens,
    max_tokens: answer_tokens.length,
    temperature: 0,
    return_token_ids: true,
  }
  const generated = (await post(`${url}/v1/completions`, body)).choices[0].token_ids as number[]
  const firstDifference = answer_tokens.findIndex((token, index) => generated[index] !== token)
  return { tokens: answer_tokens.length, shared: firstDifference < 0 ? answer_tokens.length : firstDifference, pairs }
}

test('the merged folder, then the adapter on the base', { timeout: 900_000 }, async (context) => {
  const env = { VLLM_CPU_KVCACHE_SPACE: '1', VLLM_NO_USAGE_STATS: '1' }
  const programs = [path.join(root, '.local/vllm/bin')]
  const guide = openGuide('run-huggingface.md', {
    section: 'vLLM',
    url: service.url,
    key: service.key,
    programs,
    env,
    replaced: [['--max-model-len', '--enforce-eager --max-model-len']],
  })
  const answers: string[] = []
  try {
    for await (const { command, stdout, url } of guide.steps()) {
      if (command.startsWith('curl')) answers.push(JSON.parse(stdout).choices[0].message.content)
      if (!command.startsWith('vllm')) continue
      const rows = []
      for (const row of service.reference()) rows.push(await compare(url!, row))
      const difference = meanDifference(rows.flatMap(({ pairs }) => pairs))
      const share =
        rows.reduce((sum, { shared }) => sum + shared, 0) / rows.reduce((sum, { tokens }) => sum + tokens, 0)
      context.diagnostic(`${command}: ${share.toFixed(3)} of the tokens shared, ${difference.toFixed(4)} nats apart`)
      assert.ok(difference <= mostApart, `${command}: ${difference} nats apart`)
      assert.ok(share >= 0.3, `${command}: ${share} of the tokens shared`)
    }
    assert.equal(answers.length, 2)
    for (const answer of answers) assert.ok(answer.length > 0)
  } finally {
    await guide.close()
  }
})
