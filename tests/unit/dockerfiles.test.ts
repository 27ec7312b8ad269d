// The Dockerfiles, compose.yaml and the guide that names their commands, read without Docker. hadolint and dclint check
// their form (`npm run lint`); tests/process/{deploy,bundle}.full.test.ts run what they copy.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { parse } from 'yaml'
import { root } from '../../lib/root.ts'
import { assertInContext, environmentOf, jsonOf, stagesOf } from '../support/dockerfile-copies.ts'

const file = path.join(root, 'deploy/Dockerfile')
const stages = stagesOf(file)
const image = stages.last!

test('every path that the Dockerfile copies exists, in the checkout without what .dockerignore excludes', () => {
  const copies = Object.values(stages).flatMap((stage) => stage.copies)
  assert.ok(copies.length > 15)
  for (const { from, paths } of copies)
    if (from) assert.ok(stages[from], `there is no stage ${from}`)
    else for (const path of paths) assertInContext(path, root)
  for (const secret of ['.env', 'data', '.git', 'node_modules'])
    assert.throws(() => assertInContext(secret, root), /\.dockerignore excludes it/, secret)
})

interface Service {
  build: { context: string; dockerfile: string; args: { TUNERY_GPU: string } }
  image: string
  user: string
  volumes: string[]
  ports: string[]
  stop_grace_period: string
}

test('compose.yaml and the Dockerfiles agree, and their versions match the checkout', () => {
  const text = readFileSync(file, 'utf8')
  const { services } = parse(readFileSync(path.join(root, 'deploy/compose.yaml'), 'utf8'), { merge: true })
  const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'))
  const node = JSON.parse(readFileSync(path.join(root, 'scripts/setup/pins.json'), 'utf8')).node['linux-x64'].version
  for (const dockerfile of [text, readFileSync(path.join(root, 'deploy/Dockerfile.model'), 'utf8')]) {
    assert.ok(dockerfile.includes(`FROM node:${node}-bookworm-slim AS node`))
    for (const [, image] of dockerfile.matchAll(/^FROM (\S+)/gm))
      assert.match(image!, /^(node|base-\$\{TUNERY_GPU\}|\S+:\d+\.\d+\.\d+-\S+)$/, 'a version is named')
  }
  const ours = ['tunery', 'tunery-cuda', 'tunery-scaled']
  assert.deepEqual(Object.keys(services), ['postgres', 'redis', 's3', ...ours])
  for (const each of ours) {
    const { build, image: name, user, volumes, ports, stop_grace_period } = services[each] as Service
    const { context, dockerfile, args } = build
    assert.equal(path.resolve(root, 'deploy', context, dockerfile), file)
    assert.ok(text.includes(` AS base-${args.TUNERY_GPU}\n`))
    assert.equal(name, `tunery:${version}${args.TUNERY_GPU === 'none' ? '' : `-${args.TUNERY_GPU}`}`)
    assert.ok(image.text.includes(`\nUSER ${user}\n`))
    assert.deepEqual(
      [volumes, ports],
      [[`data:${jsonOf(image, 'VOLUME')[0]}`], [`127.0.0.1:8000:${environmentOf(image, [], '').TUNERY_PORT}`]],
    )
    assert.ok(Number.parseInt(stop_grace_period, 10) > 40, 'enough time for answers and checkpoints')
  }
})

test('the guide’s commands name existing profiles, services and files', () => {
  const { services } = parse(readFileSync(path.join(root, 'deploy/compose.yaml'), 'utf8'), { merge: true })
  const texts = ['docs/guides/self-host.md', 'deploy/compose.yaml']
    .map((name) => readFileSync(path.join(root, name), 'utf8'))
    .join('\n')
  const commands = [...texts.matchAll(/docker compose (-f (\S+) --profile (\S+) .*)/g)]
  assert.ok(commands.length > 8)
  for (const [line, , name, profile] of commands) {
    assert.equal(path.resolve(root, name!), path.join(root, 'deploy/compose.yaml'))
    const service = Object.keys(services).find(
      (service) => services[service].build && services[service].profiles.includes(profile),
    )
    assert.ok(service, line)
    const within = /(?:exec|run --rm) (\S+)/.exec(line!)
    if (within) assert.equal(within[1], service, line)
  }
})
