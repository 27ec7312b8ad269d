// The engine where vLLM was chosen and cannot serve a base. tests/peers/vllm-child.test.ts has the real vLLM.
import assert from 'node:assert/strict'
import path from 'node:path'
import { test } from 'node:test'
import { modelName, modelPath, root, startEngine } from './engine-process.ts'

test('a base that vLLM is not started for is served by the engine itself, which says why', async () => {
  // The trainer's Python: a real interpreter, without vLLM.
  const engine = await startEngine(['--vllm', path.join(root, '.local/python/bin/python')])
  try {
    const checkpoint = path.join(path.dirname(modelPath), 'hf')
    const loaded = await engine.ask('POST', '/internal/load_model', { name: modelName, path: modelPath, checkpoint })
    assert.equal(loaded.status, 200, loaded.text)
    const [model] = (await engine.ask('GET', '/v1/models')).json.data
    assert.equal(model.server, 'engine')
    assert.match(model.server_problem, /has no vLLM .*npm run setup -- --with vllm/)
    const asked = { model: modelName, messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 3 }
    const answer = await engine.ask('POST', '/v1/chat/completions', asked)
    assert.equal(answer.status, 200, answer.text)
    assert.doesNotMatch(String(answer.headers['x-weights']), /vllm/)
    assert.match(engine.stderr(), /vLLM cannot serve this base: our own engine does/)
  } finally {
    await engine.stop()
  }
})
