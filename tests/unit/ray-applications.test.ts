import assert from 'node:assert/strict'
import { test } from 'node:test'
import { autoscalingConfig, vllmApplication } from '../../server/ray/engine-application.ts'

const policy = {
  min_replicas: 0,
  max_replicas: 4,
  target_requests_per_replica: 8,
  scale_up_cooldown_ms: 30_000,
  scale_down_cooldown_ms: 300_000,
}

test('a deployment’s scaling becomes Serve’s, to zero only where that is allowed', () => {
  assert.deepEqual(autoscalingConfig(policy), {
    min_replicas: 0,
    max_replicas: 4,
    initial_replicas: 1,
    target_ongoing_requests: 8,
    upscale_delay_s: 30,
    downscale_delay_s: 300,
    downscale_to_zero_delay_s: 300,
  })
  assert.ok(!('downscale_to_zero_delay_s' in autoscalingConfig({ ...policy, min_replicas: 1 })))
})

test('vLLM gets adapters only from a bucket', () => {
  const common = {
    id: 'dep',
    model: { name: 'acme/base', source: '/models/base' },
    max_lora_rank: 64,
    accelerator_type: 'H100',
    policy,
  }
  const [config] = (
    vllmApplication({ ...common, adapters_url: 's3://bucket/models' }).args as { llm_configs: object[] }
  ).llm_configs
  assert.deepEqual((config as { lora_config: object }).lora_config, {
    dynamic_lora_loading_path: 's3://bucket/models',
    max_num_adapters_per_replica: 16,
  })
  const [plain] = (vllmApplication({ ...common, adapters_url: undefined }).args as { llm_configs: object[] })
    .llm_configs
  assert.ok(!('lora_config' in plain!))
})
