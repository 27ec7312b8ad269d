// Idle models are unloaded from the engine and reloaded by the next request.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '../support/client.ts'
import { startApp } from '../support/service.ts'
import { stream } from '../support/streams.ts'
import { tiny } from '../support/tiny.ts'

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
    const busy = stream(
      `${app.url}/chat/completions`,
      app.key,
      { ...body, max_tokens: 1900, stream: true },
      { read: false },
    )
    const other = stream(`${app.url}/chat/completions`, app.key, { ...body, max_tokens: 1900, stream: true })
    assert.ok((await other.result).done)
    busy.hangUp()
  } finally {
    await app.stop()
  }
})
