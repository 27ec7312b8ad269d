// What people type stays text on every page that shows it: no element, no script, no address is made of it.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { Tunery } from '../../sdk/index.ts'
import { until } from '../support/client.ts'
import { startReceiver } from '../support/receiver.ts'
import { tiny } from '../support/tiny.ts'
import { type BrowserService, browserTest, settled, startBrowserService } from './support.ts'

/** Ends attributes and elements, runs by itself, asks template engines to count, and is read from right to left. */
const attack = '"\'><script>window.hit=1</script><img src=x onerror="window.hit=1">{{7*7}}$\u007b7*7}\u200fשלום'
/** Each field has its own, so that a page is known to show it. */
const marked = (field: string) => `${field}${attack}`
/** For fields with less room. */
const short = '<img src=x onerror="window.hit=1">'
const javascript = 'javascript:window.hit=1'

let service: BrowserService
let receiver: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  if (browserTest.skip) return
  receiver = await startReceiver((_, response) => {
    response.setHeader('content-type', 'text/html')
    response.end(marked('answer'))
  })
  service = await startBrowserService('xss', { TUNERY_WEBHOOK_ALLOW: `127.0.0.1/32:${receiver.port}` })
})
after(async () => {
  await service?.stop()
  receiver?.stop()
})

/** Waits until the page shows these texts, each whole, and checks that they are nothing else. */
async function staysText(page: Page, complaints: string[], where: string, texts: string[]): Promise<void> {
  for (const text of texts)
    await page
      .waitForFunction((expected) => {
        const squeezed = (part: string | null) => (part ?? '').replaceAll(/\s+/g, ' ')
        const values = [...document.querySelectorAll<HTMLInputElement>('input, textarea')].map(({ value }) => value)
        return [document.body.textContent, ...values].some((part) => squeezed(part).includes(expected))
      }, text)
      .catch(() => assert.fail(`${where} does not show ${text.slice(0, 40)}`))
  const rendered = await page.evaluate(() =>
    [
      ...document.querySelectorAll(
        'img[src="x"], [onerror], body script:not([src]), a[href^="javascript:" i], [src^="javascript:" i], ' +
          '[action^="javascript:" i]',
      ),
    ].map(({ outerHTML }) => outerHTML),
  )
  assert.deepEqual(rendered, [], where)
  assert.equal(await page.evaluate(() => 'hit' in window), false, where)
  // An inline script that the policy refuses would be told here.
  assert.deepEqual(complaints, [], where)
}

/** Fills the fields of the account's things through the API, which the forms send to. */
async function fill(tunery: Tunery) {
  const rows = [1, 2, 3, 4].map((number) =>
    JSON.stringify({
      messages: [
        { role: 'system', content: marked('system') },
        { role: 'user', content: marked(`question ${number} `) },
        { role: 'assistant', content: marked('reply') },
      ],
    }),
  )
  const labels = (thing: string) => ({
    name: marked(`${thing} name`),
    description: marked(`${thing} notes`),
    metadata: { [short]: marked(`${thing} value`), link: javascript },
  })
  const dataset = await tunery.datasets.upload(rows.join('\n'), {
    name: marked('dataset name'),
    description: marked('dataset notes'),
  })
  const invalid = await tunery.datasets.upload(`{"messages":${marked('broken')}\n${rows[0]}`, { name: 'broken' })
  const job = await tunery.jobs.create({
    ...labels('job'),
    model_id: tiny,
    dataset_id: dataset.id,
    config: {
      training_config: { epochs: 1, batch_size: 4 },
      evaluation_config: { sample_prompts: [marked('prompt')] },
    },
  })
  const { model, error } = await tunery.jobs.wait(job.id)
  assert.ok(model, error?.message)
  await tunery.models.update(model, labels('model'))
  const evaluation = await tunery.evaluations.create({
    ...labels('evaluation'),
    model,
    dataset: dataset.id,
    graders: [
      { type: 'string_check', name: short, input: '{{sample.output_text}}', reference: short, operation: 'eq' },
    ],
    sampling: { max_tokens: 4 },
  })
  const { key } = await tunery.keys.create({ name: marked('key name'), scopes: 'full' })
  const invitation = await tunery.invitations.create({ name: marked('guest'), role: 'viewer' })
  const url = `${receiver.url}?q=${encodeURIComponent(attack)}&r=${short.replaceAll(' ', '+')}`
  const webhook = await tunery.webhooks.create({ url, events: ['training.completed'] })
  await tunery.webhooks.test(webhook.id)
  await assert.rejects(tunery.webhooks.create({ url: javascript, events: ['training.completed'] }), { status: 400 })
  const evaluated = () => tunery.evaluations.get(evaluation.id)
  await until('the evaluation to end', async () => !['queued', 'running'].includes((await evaluated()).status))
  return { dataset, invalid, job, model, evaluation, key, invitation, webhook }
}

test('texts of attackers stay text on every page', browserTest, async (t) => {
  const owner = new Tunery({ baseUrl: `${service.address}/v1`, apiKey: service.key, maxRetries: 0 })
  const { page, complaints } = await service.visit()
  // The person's own name by the form; the browser's name by its header.
  await page.goto('/settings/profile')
  await page.getByLabel('Name').fill(marked('person'))
  await page.getByRole('button', { name: 'Save' }).click()
  await page.getByText('Saved').first().waitFor()
  const [account] = service.folder.tunery('accounts', 'list') as unknown as { id: string }[]
  service.folder.tunery('accounts', 'set', account!.id, '--name', marked('account'))
  const { link } = service.folder.tunery('sign-in-link')
  const begun = await fetch(`${service.address}/v1/sign-in/link`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'user-agent': 'browser"><img src=x onerror="window.hit=1">' },
    body: JSON.stringify({ token: link!.split('#')[1] }),
  })
  assert.equal(begun.status, 200)
  const filled = await fill(owner)
  const byItsKey = new Tunery({ baseUrl: `${service.address}/v1`, apiKey: filled.key, maxRetries: 0 })
  await byItsKey.chat.completions.create({
    model: filled.model,
    max_tokens: 2,
    messages: [{ role: 'user', content: attack }],
  })

  const m = marked
  const dataset = `/datasets/${filled.dataset.id}`
  const job = `/jobs/${filled.job.id}`
  const pages: [string, ...string[]][] = [
    ['/', m('person'), m('account'), m('job name')],
    ['/datasets', m('dataset name')],
    [dataset, m('dataset name'), m('dataset notes')],
    [`${dataset}?tab=rows`, m('system'), m('question 1 '), m('reply')],
    [`${dataset}?tab=tokens&model=${encodeURIComponent(tiny)}`, m('dataset name')],
    [`/datasets/${filled.invalid.id}?tab=problems`, m('broken')],
    ['/jobs', m('job name')],
    [job, m('job name'), m('job notes')],
    [`${job}?tab=samples`, m('prompt')],
    [`${job}?tab=rows`, m('reply')],
    [`${job}?tab=config`, m('job value'), short, javascript],
    [`${job}?tab=log`, m('job name')],
    [`/jobs/new?clone=${filled.job.id}`, m('job name'), m('job notes'), m('job value'), short],
    ['/models', m('model name')],
    [`/models/${filled.model}`, m('model name'), m('model notes'), m('model value'), short, javascript],
    ['/evaluations', m('evaluation name')],
    [`/evaluations/${filled.evaluation.id}`, m('evaluation name'), m('question 1 '), short],
    ['/settings/profile', m('person'), m('account')],
    ['/settings/keys', m('key name')],
    ['/settings/members', m('person'), m('guest')],
    ['/settings/webhooks', filled.webhook.url],
    ['/settings/usage', m('model name')],
    ['/settings/audit', 'member.'],
    ['/settings/sessions', 'browser"><img src=x onerror="window.hit=1">'],
    ['/operator', m('account')],
    [`/invitation#${filled.invitation.link.split('#')[1]}`, m('guest'), m('account')],
  ]
  for (const [address, ...texts] of pages) {
    await page.goto(address)
    await settled(page)
    await staysText(page, complaints, address, texts)
  }
  t.diagnostic(`${pages.length} pages`)
})

test('so they do in what opens above a page, and in what is asked and answered', browserTest, async () => {
  const { page, complaints } = await service.visit()
  const stays = (where: string, ...texts: string[]) => staysText(page, complaints, where, texts)
  await page.goto('/settings/webhooks')
  await page.getByRole('table', { name: 'Webhooks' }).getByRole('button').click()
  await page
    .getByRole('row', { name: /delivered/ })
    .getByRole('button')
    .click()
  await page.getByText('answered 200').waitFor()
  await stays('a delivery', marked('answer'))

  await page.goto('/settings/keys')
  await page.getByRole('button', { name: 'Actions for key name' }).click()
  await page.getByRole('menuitem', { name: 'Rename' }).click()
  await stays('the name of a key', marked('key name'))
  await page.keyboard.press('Escape')
  await page.getByRole('button', { name: 'Actions for key name' }).click()
  await page.getByRole('menuitem', { name: 'Revoke' }).click()
  await stays('a question', `Revoke ${marked('key name')}?`)

  await page.goto('/settings/audit')
  await page.getByRole('button', { name: 'invitation.created' }).click()
  await page.getByRole('dialog').getByText('guest').first().waitFor()
  await stays('the audit log')

  await page.goto('/evaluations')
  await page.getByRole('link', { name: /^evaluation name/ }).click()
  await page.getByRole('table', { name: 'Rows' }).getByRole('row').nth(1).getByRole('button').click()
  await page
    .getByRole('dialog')
    .getByText(/^system/)
    .first()
    .waitFor()
  await stays('a row of an evaluation', marked('system'), marked('reply'), short)

  await page.goto(`/playground?models=${encodeURIComponent(tiny)}`)
  await page.getByLabel('System prompt').fill(marked('system'))
  await page.getByLabel('Your question').fill(marked('asked'))
  await page.getByRole('button', { name: 'Send' }).click()
  await page.getByRole('button', { name: 'Details' }).waitFor()
  await stays('the playground', marked('asked'))
  await page.getByRole('button', { name: 'View code' }).click()
  await page.getByRole('dialog').getByText('curl').first().waitFor()
  await stays('code to copy')
})
