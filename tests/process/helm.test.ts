// The Helm charts, by Helm's own library and Kubernetes' schemas, without a cluster: what is rendered, what is refused,
// what an upgrade leaves alone, and that compose.yaml starts the same thing.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { Ajv } from 'ajv'
import { parse } from 'yaml'
import { writeBundle } from '../../cli/local/bundle/write.ts'
import { root } from '../../lib/root.ts'
import { charts, valueRows } from '../../scripts/docs/helm.ts'
import { allMetrics } from '../../scripts/docs/metrics.ts'
import { readConfig } from '../../server/config.ts'
import { readUpstreams } from '../../server/features/serving/upstreams/settings.ts'
import { environmentOf, jsonOf, stagesOf } from '../support/dockerfile-copies.ts'
import { codeBlocks } from '../support/guide-blocks.ts'
import {
  chartFolder,
  find,
  helmTest,
  type Manifest,
  podSpecs,
  previousChart,
  type Rendered,
  render,
} from '../support/helm.ts'
import { modelValues, refused, serviceValues } from '../support/helm-values.ts'

const read = (file: string) => readFileSync(path.join(root, file), 'utf8')
const sets = { tunery: serviceValues, 'tunery-model': modelValues }
const cases = charts.flatMap((chart) =>
  Object.entries(sets[chart]).map(([title, values]) => ({ chart, title, values })),
)
const all: Rendered[] = helmTest.skip
  ? []
  : render(cases.map(({ chart, values }) => ({ chart: chartFolder(chart), values })))
const of = (chart: string, title: string) =>
  all[cases.findIndex((other) => other.chart === chart && other.title === title)]!

/** Objects of other projects, for which Kubernetes has no schema. */
const foreign = /(ScaledObject|InterceptorRoute|ServiceMonitor) \S+: no schema$/

test('every set of values passes helm lint, and what it renders fits three versions of Kubernetes', helmTest, () => {
  for (const [index, { chart, title }] of cases.entries()) {
    const { lint, error, problems, manifests, notes } = all[index]!
    const name = `${chart}, ${title}`
    assert.deepEqual([lint, error], [[], undefined], name)
    assert.deepEqual(
      problems.filter((problem) => !foreign.test(problem)),
      [],
      name,
    )
    assert.ok(manifests.length >= 2 && notes[0]!.includes('kubectl'), name)
    const ids = manifests.map((manifest) => `${manifest.kind} ${manifest.metadata.name}`)
    assert.equal(new Set(ids).size, ids.length, `${name}: an object twice`)
    for (const { metadata } of manifests) {
      assert.ok(metadata.name.length <= 63, `${metadata.name} is too long`)
      for (const value of Object.values(metadata.labels ?? {})) assert.match(value, /^[\w.-]{0,63}$/)
    }
  }
})

test(
  "pods run under Pod Security 'restricted', with a read-only root, and without a token for Kubernetes",
  helmTest,
  () => {
    let pods = 0
    for (const [index, { title }] of cases.entries())
      for (const manifest of all[index]!.manifests)
        for (const { name, pod } of podSpecs(manifest)) {
          pods++
          const what = `${title}: ${name}`
          // Services named tunery would make variables that begin with TUNERY_, which the service refuses.
          assert.equal(pod.enableServiceLinks, false, what)
          if (!(manifest.kind === 'RayCluster' && manifest.spec.enableInTreeAutoscaling))
            assert.equal(pod.automountServiceAccountToken, false, what)
          const { runAsNonRoot, runAsUser, fsGroup, seccompProfile } = pod.securityContext
          assert.ok(runAsNonRoot && runAsUser > 0 && fsGroup === runAsUser, what)
          assert.deepEqual(seccompProfile, { type: 'RuntimeDefault' }, what)
          for (const { securityContext, env = [], volumeMounts } of [
            ...pod.containers,
            ...(pod.initContainers ?? []),
          ]) {
            assert.deepEqual(
              [securityContext.allowPrivilegeEscalation, securityContext.capabilities],
              [false, { drop: ['ALL'] }],
              what,
            )
            // Ray and its packages write beside themselves.
            if (manifest.kind !== 'RayCluster') assert.equal(securityContext.readOnlyRootFilesystem, true, what)
            assert.ok(volumeMounts.length > 0, what)
            for (const { name, value } of env)
              if (
                /PASSWORD|TOKEN|SECRET_ACCESS|API_KEY|ENGINE_KEY_\w+$/.test(name) &&
                name !== 'TUNERY_ENGINE_KEY_FILE'
              )
                assert.equal(value, undefined, `${what}: ${name} is written out`)
          }
          const volumes = new Set(pod.volumes?.map((volume: { name: string }) => volume.name))
          for (const template of manifest.spec.volumeClaimTemplates ?? []) volumes.add(template.metadata.name)
          for (const { volumeMounts } of pod.containers)
            for (const mount of volumeMounts) assert.ok(volumes.has(mount.name), `${what}: no volume ${mount.name}`)
        }
    assert.ok(pods > 40)
    for (const { manifests } of all)
      assert.deepEqual(
        manifests.filter(({ kind }) => ['Secret', 'ConfigMap'].includes(kind)),
        [],
        'secrets are named, never made',
      )
  },
)

test('bad values are refused: by the JSON schema where it can, and by Helm with what to do', helmTest, () => {
  const rendered = render(refused.map(({ chart, values }) => ({ chart: chartFolder(chart), values })))
  const ajv = new Ajv({
    allErrors: true,
    strict: true,
    allowUnionTypes: true,
    strictTypes: false,
    strictRequired: false,
  })
  const validate = Object.fromEntries(
    charts.map((chart) => [chart, ajv.compile(JSON.parse(read(`deploy/helm/${chart}/values.schema.json`)))]),
  )
  for (const [index, { chart, values, schema, says }] of refused.entries()) {
    const what = JSON.stringify(values)
    assert.match(rendered[index]!.error ?? 'accepted', says, what)
    assert.equal(!validate[chart]!(values), schema ?? false, what)
  }
  for (const { chart, title, values } of cases)
    assert.ok(validate[chart]!(values), `${title}: ${ajv.errorsText(validate[chart]!.errors)}`)
  for (const chart of charts) assert.ok(validate[chart]!(parse(read(`deploy/helm/${chart}/values.yaml`))), chart)
})

test('the README of each chart lists every value', () => {
  for (const chart of charts) {
    const rows = valueRows(chart)
    const listed = new Set(rows.map((row) => row.path))
    const readme = read(`deploy/helm/${chart}/README.md`)
    const leaves = (value: unknown, at: string): string[] =>
      listed.has(at) || typeof value !== 'object' || value === null || Array.isArray(value)
        ? [at]
        : Object.entries(value).flatMap(([name, each]) => leaves(each, at ? `${at}.${name}` : name))
    for (const leaf of leaves(parse(read(`deploy/helm/${chart}/values.yaml`)), ''))
      assert.ok(listed.has(leaf), `${chart}: ${leaf} is in values.yaml and not in the schema`)
    for (const { path: at, about } of rows) {
      assert.ok(readme.includes(`| \`${at}\` |`), `${chart}: ${at}`)
      assert.ok(about.length > 3, `${chart}: ${at} has no description`)
    }
  }
})

/** Fields of a StatefulSet that Kubernetes lets an upgrade change. */
const mutable = [
  'replicas',
  'template',
  'updateStrategy',
  'minReadySeconds',
  'persistentVolumeClaimRetentionPolicy',
  'revisionHistoryLimit',
  'ordinals',
]

test('an upgrade from the previous version removes nothing and changes no immutable field', helmTest, () => {
  const unchecked = (folder: (chart: string) => string, upgrade: boolean) =>
    render(cases.map(({ chart, values }) => ({ chart: folder(chart), values, upgrade, checked: false })))
  const before = unchecked(previousChart, false)
  const after = unchecked(chartFolder, true)
  for (const [index, { chart, title }] of cases.entries()) {
    assert.equal(before[index]!.error, undefined, title)
    for (const old of before[index]!.manifests) {
      const now = find(after[index]!, old.kind, old.metadata.name)
      const what = `${chart}, ${title}: ${old.kind} ${old.metadata.name}`
      const fixed = ({ kind, spec }: Manifest) =>
        kind === 'StatefulSet'
          ? Object.fromEntries(Object.entries(spec).filter(([name]) => !mutable.includes(name)))
          : kind === 'Deployment'
            ? spec.selector
            : kind === 'Service'
              ? spec.clusterIP
              : undefined
      assert.deepEqual(fixed(now), fixed(old), what)
    }
    // A selector finds the pods of its own template.
    for (const { kind, spec } of after[index]!.manifests)
      if (kind === 'StatefulSet' || kind === 'Deployment')
        for (const [name, value] of Object.entries(spec.selector.matchLabels))
          assert.equal(spec.template.metadata.labels[name], value)
  }
})

test('Helm chart and compose file start the same thing', helmTest, () => {
  const { services } = parse(read('deploy/compose.yaml'), { merge: true })
  const image = stagesOf(path.join(root, 'deploy/Dockerfile')).last!
  const healthcheck = /HEALTHCHECK --interval=(\d+)s --timeout=(\d+)s --start-period=\d+s --retries=(\d+)/.exec(
    image.text,
  )!
  const seconds = (text: string) => Number.parseInt(text, 10)
  const pairs = [
    ['tunery', 'default', 'demo-tunery'],
    ['tunery-cuda', 'a GPU in the server', 'demo-tunery'],
    ['tunery-scaled', 'bundled', 'demo-tunery'],
  ] as const
  for (const [service, title, name] of pairs) {
    const compose = services[service]
    const { template } = find(of('tunery', title), 'StatefulSet', name).spec
    const pod = template.spec
    const [container] = pod.containers
    assert.equal(container.image, compose.image)
    assert.deepEqual(
      [container.command, container.args, compose.command, compose.entrypoint],
      [undefined, undefined, undefined, undefined],
    )
    assert.equal(`${pod.securityContext.runAsUser}:${pod.securityContext.runAsGroup}`, compose.user)
    assert.equal(container.securityContext.readOnlyRootFilesystem, compose.read_only)
    assert.deepEqual(container.securityContext.capabilities.drop, compose.cap_drop)
    assert.ok(compose.security_opt.includes('no-new-privileges:true'))
    assert.deepEqual(
      container.ports.map((port: { containerPort: number }) => `127.0.0.1:8000:${port.containerPort}`),
      compose.ports,
    )
    assert.equal(container.ports[0].containerPort, Number(environmentOf(image, [], '').TUNERY_PORT))
    const mounts = Object.fromEntries(
      container.volumeMounts.map((volumeMount: { name: string; mountPath: string }) => [
        volumeMount.name,
        volumeMount.mountPath,
      ]),
    )
    assert.deepEqual([`data:${mounts.data}`], compose.volumes)
    assert.equal(mounts.data, jsonOf(image, 'VOLUME')[0])
    const volume = (name: string) => pod.volumes.find((volume: { name: string }) => volume.name === name)
    assert.deepEqual(
      [`${mounts.tmp}:size=${volume('tmp').emptyDir.sizeLimit.replace('Gi', 'g')},mode=1777`],
      compose.tmpfs,
    )
    if (compose.shm_size) assert.equal(`${volume('shm').emptyDir.sizeLimit.replace('Gi', 'gb')}`, compose.shm_size)
    const preStop = Number(container.lifecycle.preStop.exec.command[1])
    assert.equal(pod.terminationGracePeriodSeconds, preStop + seconds(compose.stop_grace_period))
    const { readinessProbe: ready } = container
    assert.ok(image.text.includes(ready.httpGet.path))
    assert.deepEqual(
      [ready.periodSeconds, ready.timeoutSeconds, ready.failureThreshold],
      healthcheck.slice(1).map(Number),
    )
    // The environment, but for what Kubernetes alone needs: each pod's share of its node, and the common key.
    const variables = ['POD_NAME', 'TUNERY_THREADS', 'TUNERY_SECRET_KEY_FILE']
    const env = (container.env as { name: string; value?: string }[]).filter(
      (variable) => !variables.includes(variable.name),
    )
    assert.deepEqual(env.map((variable) => variable.name).sort(), Object.keys(compose.environment).sort(), service)
    for (const { name, value } of env)
      if (value !== undefined)
        assert.equal(
          value.replaceAll('demo-tunery-', ''),
          String(compose.environment[name])
            .replace(/\$\{TUNERY_\w+:-(.*?)\}/g, '$1')
            .replace(/\$\{(\w+):-\}/g, '$($1)'),
          name,
        )
  }
  const { tunery } = { tunery: services.tunery }
  assert.equal(tunery.image, `tunery:${JSON.parse(read('package.json')).version}`)
  for (const [service, volume] of [
    ['postgres', 'postgres'],
    ['redis', undefined],
    ['s3', 's3'],
  ] as const) {
    const compose = services[service]
    const [container] = find(of('tunery', 'bundled'), 'StatefulSet', `demo-tunery-${service}`).spec.template.spec
      .containers
    assert.equal(container.image, compose.image, service)
    assert.deepEqual(
      container.args.map((arg: string) => arg.replace(/\$\((\w+)\)/, (_, name) => `$\{${name}:-}`)),
      compose.command,
      service,
    )
    assert.deepEqual(
      container.env.map((variable: { name: string }) => variable.name).sort(),
      Object.keys(compose.environment).sort(),
      service,
    )
    if (volume)
      assert.equal(
        container.volumeMounts.find((volumeMount: { name: string }) => volumeMount.name === 'data').mountPath,
        compose.volumes[0].split(':')[1],
      )
  }
})

/** The environment of a server's container, as Kubernetes makes it. */
function environment(rendered: Rendered): Record<string, string> {
  const { env } = find(rendered, 'StatefulSet', 'demo-tunery').spec.template.spec.containers[0]
  const values: Record<string, string> = {}
  const secrets: Record<string, string> = {
    TUNERY_DATABASE_URL: 'postgres://u:p@db/tunery',
    TUNERY_REDIS_URL: 'redis://:p@redis:6379/0',
  }
  for (const { name, value, valueFrom } of env) {
    if (valueFrom?.resourceFieldRef) values[name] = '2'
    else if (valueFrom?.fieldRef) values[name] = 'demo-tunery-0'
    else if (valueFrom) values[name] = secrets[name] ?? 'secret'
    else values[name] = value.replace(/\$\((\w+)\)/g, (text: string, other: string) => values[other] ?? text)
    assert.doesNotMatch(values[name]!, /\$\(/, `${name} uses a variable that comes later`)
  }
  return values
}

test('the service accepts the environment and the upstreams that the chart gives it', helmTest, () => {
  for (const title of Object.keys(serviceValues)) {
    if (title === 'a long name') continue
    const env = environment(of('tunery', title))
    const config = readConfig(env)
    assert.equal(config.threads, 2)
    readUpstreams(config.upstreams, env)
  }
  const bundled = { ...environment(of('tunery', 'bundled')), TUNERY_DATABASE_PASSWORD: 'p@ss/w:o#r%d ä' }
  const { database_url, redis_url } = readConfig({ ...bundled, TUNERY_REDIS_PASSWORD: '?@&=' })
  const [database, redis] = [database_url!, redis_url!].map((url) => new URL(url))
  assert.deepEqual(
    [database!.hostname, database!.username, decodeURIComponent(database!.password)],
    ['demo-tunery-postgres', 'tunery', bundled.TUNERY_DATABASE_PASSWORD],
  )
  assert.deepEqual([redis!.hostname, decodeURIComponent(redis!.password)], ['demo-tunery-redis', '?@&='])
  assert.equal(environment(of('tunery', 'ingress')).TUNERY_CACHE_MB, '5000000', 'not 5e+06')
  const env = environment(of('tunery', 'engines'))
  const upstreams = readUpstreams(env.TUNERY_UPSTREAMS, env)
  assert.deepEqual(
    upstreams.map(({ url, adapter_root, api_key }) => [url.href, adapter_root, api_key]),
    [
      ['http://demo-tunery-engine-qwen-0.demo-tunery-engine-qwen:8000/v1', '/mnt/tunery/demo-tunery-0', 'secret'],
      ['http://demo-tunery-engine-qwen-1.demo-tunery-engine-qwen:8000/v1', '/mnt/tunery/demo-tunery-0', 'secret'],
      ['http://demo-tunery-engine-mistral-0.demo-tunery-engine-mistral:8000/v1', undefined, undefined],
      ['https://llm.example.com/v1', undefined, 'secret'],
    ],
  )
  const [engine] = find(of('tunery', 'engines'), 'StatefulSet', 'demo-tunery-engine-mistral').spec.template.spec
    .containers
  assert.deepEqual(engine.resources.limits, { memory: '32Gi', 'nvidia.com/gpu': 2 })
  assert.ok(engine.args.includes('--tensor-parallel-size=2'))
})

test(
  'scaling: no replica count beside an autoscaler, metrics that exist, and zero that the ingress cannot defeat',
  helmTest,
  () => {
    const names = new Set(allMetrics.map((metric) => metric.name))
    let queries = 0
    for (const { manifests } of all)
      for (const { kind, spec } of manifests) {
        const metrics: string[] =
          kind === 'ScaledObject'
            ? spec.triggers.flatMap(
                (trigger: { metadata: { query?: string } }) => trigger.metadata.query?.match(/tunery_\w+/g) ?? [],
              )
            : kind === 'HorizontalPodAutoscaler'
              ? spec.metrics.flatMap(
                  (metric: { pods?: { metric: { name: string } } }) => metric.pods?.metric.name ?? [],
                )
              : []
        queries += metrics.length
        for (const metric of metrics) assert.ok(names.has(metric), metric)
        if (spec?.scaleTargetRef) {
          const target = manifests.find(
            (manifest) =>
              manifest.kind === spec.scaleTargetRef.kind && manifest.metadata.name === spec.scaleTargetRef.name,
          )!
          assert.equal(target.spec.replicas, undefined, 'an upgrade would reset the number')
        }
      }
    assert.ok(queries >= 5)
    // The service: its servers stay, its engines go to zero behind an interceptor that only they are called through.
    const service = of('tunery', 'engines to zero')
    const env = environment(service)
    const [upstream] = readUpstreams(env.TUNERY_UPSTREAMS, env)
    const route = find(service, 'InterceptorRoute', 'demo-tunery-engine-qwen').spec
    assert.deepEqual(route.rules, [{ hosts: [upstream!.url.hostname] }])
    assert.equal(find(service, 'Service', upstream!.url.hostname).spec.type, 'ExternalName')
    assert.equal(find(service, 'ScaledObject', 'demo-tunery-engine-qwen').spec.minReplicaCount, 0)
    assert.deepEqual([route.timeouts.request, route.timeouts.readiness], ['0s', '1800s'])
    // A model: the ingress leads to the interceptor, not to a Service that has no pod at zero.
    const model = of('tunery-model', 'to zero')
    const backend = find(model, 'Ingress', 'demo').spec.rules[0].http.paths[0].backend.service
    assert.deepEqual(backend, { name: 'demo-door', port: { number: 8080 } })
    assert.deepEqual(find(model, 'InterceptorRoute', 'demo').spec.rules[0].hosts, ['demo-door', 'tickets.example.com'])
  },
)

test('the ingress passes streams on, for as long as they take, and keeps the inner paths closed', helmTest, () => {
  const { metadata, spec } = find(of('tunery', 'ingress'), 'Ingress', 'demo-tunery')
  const nginx = (name: string) => metadata.annotations![`nginx.ingress.kubernetes.io/${name}`]
  assert.deepEqual(
    ['proxy-read-timeout', 'proxy-send-timeout', 'proxy-buffering', 'proxy-request-buffering', 'proxy-body-size'].map(
      nginx,
    ),
    ['3600', '3600', 'off', 'off', '2048m'],
  )
  const paths = spec.rules[0].http.paths.map((path: { path: string; backend: { service: { name: string } } }) => [
    path.path,
    path.backend.service.name,
  ])
  assert.deepEqual(paths, [
    ['/internal', 'demo-tunery-closed'],
    ['/metrics', 'demo-tunery-closed'],
    ['/', 'demo-tunery'],
  ])
  assert.notEqual(find(of('tunery', 'ingress'), 'Service', 'demo-tunery-closed').spec.ports[0].targetPort, 'http')
  const alb = find(of('tunery', 'ingress of a load balancer'), 'Ingress', 'demo-tunery').metadata.annotations!
  assert.match(alb['alb.ingress.kubernetes.io/load-balancer-attributes']!, /idle_timeout\.timeout_seconds=3600/)
  assert.equal(alb['alb.ingress.kubernetes.io/scheme'], 'internal')
  const monitor = find(of('tunery', 'policies and metrics'), 'ServiceMonitor', 'demo-tunery').spec
  const matching = of('tunery', 'policies and metrics').manifests.filter(
    ({ kind, metadata: { labels } }) =>
      kind === 'Service' &&
      Object.entries(monitor.selector.matchLabels).every(([name, value]) => labels?.[name] === value),
  )
  assert.deepEqual(
    matching.map((manifest) => manifest.metadata.name),
    ['demo-tunery'],
    'each pod is read once',
  )
  assert.equal(matching[0]!.metadata.labels![monitor.jobLabel], 'tunery', 'the job of deploy/monitoring')
})

test('network policies without egress to anywhere leave what a server needs', helmTest, () => {
  const egressOf = (title: string, component = 'server') =>
    of('tunery', title)
      .manifests.filter(
        ({ kind, spec }) =>
          kind === 'NetworkPolicy' && spec.podSelector.matchLabels['app.kubernetes.io/component'] === component,
      )
      .flatMap(({ spec }) => JSON.stringify(spec.egress))
      .join()
  const open = egressOf('policies and metrics')
  const closed = egressOf('closed policies')
  assert.ok(open.includes('0.0.0.0/0') && !closed.includes('0.0.0.0/0'))
  for (const egress of [open, closed])
    assert.ok(egress.includes('"kubernetes.io/metadata.name":"keda"'), "KEDA's interceptor answers for engines at zero")
  // A bucket by the pod's role: by EKS Pod Identity, and never by that of the node.
  assert.ok(closed.includes('169.254.170.23/32') && !closed.includes('169.254.169.254'))
  assert.ok(!open.includes('169.254.170.23'), 'keys are in a Secret')
  assert.doesNotMatch(egressOf('closed policies', 'engine-qwen'), /keda|169\.254\.170/)
})

test('trainings go to Ray: its address, its token, and the queue of Kueue', helmTest, () => {
  const rendered = of('tunery', 'Ray of ours')
  const env = environment(rendered)
  assert.equal(env.TUNERY_RAY_ADDRESS, 'http://demo-tunery-ray-head-svc:8265')
  assert.equal(env.TUNERY_RAY_SERVICE_URL, 'http://demo-tunery.ml.svc:8000')
  assert.equal(env.TUNERY_RAY_TOKEN, 'secret')
  const { metadata, spec } = find(rendered, 'RayCluster', 'demo-tunery-ray')
  assert.equal(metadata.labels!['kueue.x-k8s.io/queue-name'], 'training')
  const [h100, cores] = spec.workerGroupSpecs
  assert.deepEqual([h100.replicas, h100.minReplicas, h100.maxReplicas], [2, 2, 2])
  assert.equal(h100.template.spec.containers[0].resources.limits['nvidia.com/gpu'], 1)
  assert.equal(cores.template.spec.containers[0].resources.limits['nvidia.com/gpu'], undefined)
  assert.equal(
    find(of('tunery', 'Ray that scales'), 'RayCluster', 'demo-tunery-ray').spec.workerGroupSpecs[0].minReplicas,
    0,
  )
})

test(
  'a bundle with a chart has the values of its model, and serves it with the settings that a bundle knows',
  helmTest,
  async () => {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-chart-'))
    try {
      const gguf = path.join(folder, 'model.gguf')
      writeFileSync(gguf, Buffer.concat([Buffer.from('GGUF'), Buffer.alloc(3e6)]))
      const out = path.join(folder, 'bundle')
      const model = { name: 'Acme/Tickets v2', file: gguf }
      await writeBundle({ model, adapters: [], gpu: 'cuda', chart: true, out })
      await writeBundle({ model, adapters: [], gpu: 'none', chart: false, out: `${out}-2` })
      assert.throws(() => readFileSync(path.join(`${out}-2`, 'chart/Chart.yaml')), /ENOENT/)
      const readme = (at: string) => readFileSync(path.join(at, 'README.md'), 'utf8')
      assert.match(readme(out), /helm install acme-tickets-v2 chart/)
      assert.doesNotMatch(readme(`${out}-2`), /helm|CHART_NOTE/)
      assert.match(readFileSync(path.join(out, '.dockerignore'), 'utf8'), /^chart$/m)
      const [rendered] = render([
        { chart: path.join(out, 'chart'), values: { apiKey: { existingSecret: 'keys' } }, name: 'tickets' },
      ])
      assert.deepEqual([rendered!.error, rendered!.lint, rendered!.problems], [undefined, [], []])
      assert.match(rendered!.notes[0]!, /The model "Acme\/Tickets v2" starts as tickets/)
      const pod = find(rendered!, 'Deployment', 'tickets').spec.template.spec
      const [container] = pod.containers
      const { version } = JSON.parse(read('package.json'))
      assert.equal(container.image, `acme-tickets-v2:${version}`)
      assert.deepEqual(container.resources.limits, { memory: '1536Mi', 'nvidia.com/gpu': 1 })
      // The image of the bundle: its user, its port, its health, its command.
      const image = stagesOf(path.join(out, 'Dockerfile')).last!
      assert.ok(image.text.includes(`\nUSER ${pod.securityContext.runAsUser}:${pod.securityContext.runAsGroup}\n`))
      assert.equal(container.ports[0].containerPort, Number(environmentOf(image, [], '').TUNERY_PORT))
      assert.deepEqual([container.command, container.args], [undefined, undefined])
      assert.ok(image.text.includes(`TUNERY_PORT}${container.readinessProbe.httpGet.path}\``))
      const start = readFileSync(path.join(out, 'start.mjs'), 'utf8')
      for (const { name, value } of container.env) {
        assert.ok(start.includes(`'${name.replace('TUNERY_', '')}'`), `a bundle has no setting ${name}`)
        if (name === 'TUNERY_GRACE_SECONDS')
          assert.ok(
            pod.terminationGracePeriodSeconds > Number(value) + Number(container.lifecycle.preStop.exec.command[1]),
          )
      }
    } finally {
      rmSync(folder, { recursive: true })
    }
  },
)

test('the values in the guide can be installed', helmTest, () => {
  const blocks = codeBlocks('docs/guides/kubernetes.md').filter((codeBlock) => codeBlock.language === 'yaml')
  assert.ok(blocks.length >= 4)
  const rendered = render(blocks.map(({ code }) => ({ chart: chartFolder('tunery'), values: parse(code) })))
  for (const [index, { error, lint, problems }] of rendered.entries())
    assert.deepEqual(
      [error, lint, problems.filter((problem) => !foreign.test(problem))],
      [undefined, [], []],
      blocks[index]!.code,
    )
})
