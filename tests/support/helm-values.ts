// Values with which the Helm charts are rendered: what operators install.

const secret = (name: string) => ({ existingSecret: name })

const bundled = {
  database: { kind: 'bundled', bundled: secret('pg') },
  redis: { kind: 'bundled', bundled: secret('redis') },
  storage: { kind: 'bundled', bundled: secret('s3') },
  server: { secretKey: secret('secret-key') },
}
const external = {
  database: { kind: 'external', external: secret('pg') },
  redis: { kind: 'external', external: secret('redis') },
  storage: {
    kind: 'external',
    external: { url: 's3://models/tunery?endpoint=https://s3.example.com&region=eu-1', existingSecret: 's3' },
  },
  server: { replicas: 3, secretKey: secret('secret-key') },
}
const qwen = { name: 'qwen', model: 'Qwen/Qwen2.5-7B-Instruct' }
const gpuNodes = {
  nodeSelector: { 'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3' },
  tolerations: [{ key: 'nvidia.com/gpu', operator: 'Exists', effect: 'NoSchedule' }],
}
const ray = {
  kind: 'bundled',
  bundled: {
    image: 'registry.example.com/tunery-ray:2.52.0',
    existingSecret: 'ray-token',
    queueName: 'training',
    workers: [
      { name: 'h100', replicas: 2, scheduling: gpuNodes },
      { name: 'cores', gpu: { count: 0 } },
    ],
  },
}

/** Values of the service's chart, by what they install. */
export const serviceValues: Record<string, object> = {
  default: {},
  bundled,
  external,
  'a GPU in the server': { server: { gpu: { count: 2 }, scheduling: { ...gpuNodes, runtimeClassName: 'nvidia' } } },
  engines: {
    ...external,
    engines: [
      { ...qwen, replicas: 2, adapters: { enabled: true, existingClaim: 'adapters' }, apiKey: secret('engine-key') },
      { name: 'mistral', model: 'mistralai/Mistral-7B-v0.3', gpu: { count: 2 }, cache: { enabled: false } },
    ],
    upstreams: [{ model: 'acme/coder', url: 'https://llm.example.com/v1', kind: 'openai', api_key_env: 'ACME_KEY' }],
    server: { ...external.server, secretEnv: { ACME_KEY: { name: 'acme', key: 'key' } } },
  },
  'engines by KEDA': {
    ...external,
    engines: [{ ...qwen, autoscaling: { kind: 'keda', minReplicas: 1, maxReplicas: 3 } }],
  },
  'engines to zero': { engines: [{ ...qwen, autoscaling: { kind: 'keda-http', minReplicas: 0, maxReplicas: 2 } }] },
  hpa: { ...external, autoscaling: { kind: 'hpa', cpuPercent: 70 } },
  keda: { ...external, autoscaling: { kind: 'keda', minReplicas: 3, maxReplicas: 9 } },
  ingress: {
    ingress: { enabled: true, className: 'nginx', host: 'llm.example.com', tlsSecret: 'tls' },
    server: { settings: { TUNERY_TRUSTED_PROXIES: '10.0.0.0/8', TUNERY_LOG_LEVEL: 'info', TUNERY_CACHE_MB: 5000000 } },
  },
  'ingress of a load balancer': {
    ingress: {
      enabled: true,
      controller: 'alb',
      host: 'llm.example.com',
      annotations: { 'alb.ingress.kubernetes.io/scheme': 'internal' },
    },
  },
  'no persistence': { ...external, server: { ...external.server, persistence: { enabled: false } } },
  'Ray of ours': { ray },
  'Ray that scales': { ray: { ...ray, bundled: { ...ray.bundled, queueName: '', autoscaling: true } } },
  'Ray of yours': {
    ray: { kind: 'external', external: { address: 'http://ray-head.ray:8265', existingSecret: 'ray-token' } },
  },
  'policies and metrics': {
    ...bundled,
    engines: [{ ...qwen, autoscaling: { kind: 'keda-http', minReplicas: 0, maxReplicas: 2 } }],
    ray,
    networkPolicy: {
      enabled: true,
      ingressFrom: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'ingress-nginx' } } }],
      metricsFrom: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } } }],
      egress: [{ to: [{ ipBlock: { cidr: '10.1.0.0/16' } }], ports: [{ port: 5432 }] }],
    },
    serviceMonitor: { enabled: true, labels: { release: 'prometheus' } },
  },
  'closed policies': {
    ...external,
    storage: { kind: 'external', external: { url: 's3://models/tunery?region=eu-central-1' } },
    serviceAccount: { annotations: { 'eks.amazonaws.com/role-arn': 'arn:aws:iam::111122223333:role/tunery' } },
    engines: [{ ...qwen, autoscaling: { kind: 'keda-http', minReplicas: 0, maxReplicas: 2 } }],
    networkPolicy: { enabled: true, egressAnywhere: false },
  },
  'a long name': { fullnameOverride: 'an-installation-with-quite-a-long-name', ...bundled, engines: [qwen], ray },
}

/** Values of a model's chart, by what they install. */
export const modelValues: Record<string, object> = {
  default: {},
  'a GPU': {
    gpu: { count: 1 },
    replicas: 2,
    image: { repository: 'registry.example.com/tickets', tag: '3' },
    scheduling: gpuNodes,
  },
  'an ingress': {
    apiKey: secret('keys'),
    ingress: { enabled: true, host: 'tickets.example.com', tlsSecret: 'tls' },
    replicas: 3,
  },
  hpa: { autoscaling: { kind: 'hpa', minReplicas: 2 } },
  keda: { autoscaling: { kind: 'keda' }, serviceMonitor: { enabled: true }, apiKey: secret('keys') },
  'to zero': {
    autoscaling: { kind: 'keda-http', minReplicas: 0 },
    apiKey: secret('keys'),
    ingress: { enabled: true, host: 'tickets.example.com' },
    networkPolicy: { enabled: true, ingressFrom: [{ podSelector: {} }] },
  },
}

/** Values that are refused, with what the message says. `schema`: by values.schema.json, before any template. */
export const refused: { chart: 'tunery' | 'tunery-model'; values: object; schema?: true; says: RegExp }[] = [
  { chart: 'tunery', values: { servr: {} }, schema: true, says: /servr/ },
  { chart: 'tunery', values: { server: { replica: 2 } }, schema: true, says: /replica/ },
  { chart: 'tunery', values: { server: { replicas: '2' } }, schema: true, says: /replicas/ },
  {
    chart: 'tunery',
    values: { server: { settings: { TUNERY_LOG_LEVL: 'info' } } },
    schema: true,
    says: /TUNERY_LOG_LEVL/,
  },
  {
    chart: 'tunery',
    values: { server: { settings: { TUNERY_HUGGINGFACE_TOKEN: 'hf_x' } } },
    schema: true,
    says: /TUNERY_HUGGINGFACE_TOKEN/,
  },
  { chart: 'tunery', values: { server: { stopGraceSeconds: 30 } }, schema: true, says: /stopGraceSeconds/ },
  { chart: 'tunery', values: { server: { persistence: { size: '50 GB' } } }, schema: true, says: /size/ },
  { chart: 'tunery', values: { database: { kind: 'mysql' } }, schema: true, says: /kind/ },
  { chart: 'tunery', values: { database: { bundled: { password: 'secret' } } }, schema: true, says: /password/ },
  { chart: 'tunery', values: { autoscaling: { minReplicas: 0 } }, schema: true, says: /minReplicas/ },
  { chart: 'tunery', values: { engines: [{ name: 'qwen' }] }, schema: true, says: /model/ },
  { chart: 'tunery', values: { engines: [{ ...qwen, name: 'Qwen_7B' }] }, schema: true, says: /name/ },
  {
    chart: 'tunery',
    values: { upstreams: [{ model: 'a/b', url: 'http://x', kind: 'vllm', api_key: 'secret' }] },
    schema: true,
    says: /upstreams/,
  },
  { chart: 'tunery', values: { server: { replicas: 2 } }, says: /Several servers need one database/ },
  { chart: 'tunery', values: { ...external, server: { replicas: 2 } }, says: /secretKey\.existingSecret/ },
  { chart: 'tunery', values: { ...external, storage: { kind: 'none' } }, says: /one storage/ },
  { chart: 'tunery', values: { ...external, autoscaling: { kind: 'hpa', minReplicas: 7 } }, says: /above/ },
  {
    chart: 'tunery',
    values: { ...external, autoscaling: { kind: 'hpa', requestsPerReplica: 0 } },
    says: /needs a target/,
  },
  { chart: 'tunery', values: { server: { persistence: { enabled: false } } }, says: /would be lost/ },
  { chart: 'tunery', values: { database: { kind: 'bundled' } }, says: /database\.bundled\.existingSecret/ },
  { chart: 'tunery', values: { redis: { kind: 'external' } }, says: /redis\.external\.existingSecret/ },
  { chart: 'tunery', values: { storage: { kind: 'external' } }, says: /storage\.external\.url/ },
  { chart: 'tunery', values: { ingress: { enabled: true } }, says: /ingress\.host/ },
  { chart: 'tunery', values: { ray: { kind: 'external' } }, says: /ray\.external\.address/ },
  { chart: 'tunery', values: { ray: { ...ray, bundled: { ...ray.bundled, existingSecret: '' } } }, says: /token/ },
  {
    chart: 'tunery',
    values: { ray: { ...ray, bundled: { ...ray.bundled, autoscaling: true } } },
    says: /Kueue admits/,
  },
  { chart: 'tunery', values: { engines: [qwen, qwen] }, says: /Two engines/ },
  {
    chart: 'tunery',
    values: { engines: [{ ...qwen, autoscaling: { kind: 'keda', minReplicas: 0 } }] },
    says: /keda-http/,
  },
  { chart: 'tunery', values: { engines: [{ ...qwen, adapters: { enabled: true } }] }, says: /ReadWriteMany/ },
  {
    chart: 'tunery',
    values: {
      engines: [{ ...qwen, adapters: { enabled: true, existingClaim: 'a' }, autoscaling: { kind: 'keda-http' } }],
    },
    says: /pod by pod/,
  },
  { chart: 'tunery-model', values: { replica: 2 }, schema: true, says: /replica/ },
  { chart: 'tunery-model', values: { gpu: { count: 'one' } }, schema: true, says: /count/ },
  { chart: 'tunery-model', values: { apiKey: { value: 'secret' } }, schema: true, says: /value/ },
  { chart: 'tunery-model', values: { autoscaling: { kind: 'hpa', minReplicas: 0 } }, says: /keda-http/ },
  { chart: 'tunery-model', values: { apiKey: secret('k'), ingress: { enabled: true } }, says: /ingress\.host/ },
  { chart: 'tunery-model', values: { ingress: { enabled: true, host: 'a.example.com' } }, says: /apiKey/ },
]
