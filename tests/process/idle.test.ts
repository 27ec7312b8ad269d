// Idle models are unloaded from the engine and reloaded by the next request.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { endless, tiny } from '../support/tiny.ts'

test('an idle model is unloaded, one in use is not, and the next request reloads it', async () => {
  const app = await startApp({ TUNERY_IDLE_UNLOAD_SECONDS: '1' })
  try {
    const body = { model: tiny, messages: [{ role: 'user', content: 'Hello.' }], temperature: 0, max_tokens: 2 }
    const status = async () => (await app.api('GET', `/models/${tiny}`)).body.status
    assert.equal((await app.api('POST', '/chat/completions', body)).status, 200)
    assert.equal(await status(), 'loaded')
    await until('it to be unloaded', async () => (await status()) === 'not_loaded')
    assert.equal((await app.api('POST', '/chat/completions', body)).status, 200)
    assert.equal(await status(), 'loaded')
    // More than the sockets buffer, so the stream stays in progress while its client reads nothing.
    const wide = { ...body, ...endless, max_tokens: 1900, stream: true, logprobs: true, top_logprobs: 20 }
    const response = await fetch(`${app.url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${app.key}`, 'content-type': 'application/json' },
      body: JSON.stringify(wide),
    })
    const inProgress = async () => (await app.api('GET', '/user/profile')).body.usage.concurrent
    const started_at = Date.now()
    while (Date.now() - started_at < 2500) {
      assert.deepEqual([await inProgress(), await status()], [1, 'loaded'])
      await sleep(100)
    }
    await response.body!.cancel()
    await until('it to be unloaded again', async () => (await status()) === 'not_loaded')
  } finally {
    await app.stop()
  }
})
