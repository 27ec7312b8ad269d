// Settings: keys, webhooks, members and sessions, as their owner, a viewer and another account's people see them.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { Tunery, verifyWebhook } from '../../sdk/index.ts'
import { colourRows, until } from '../support/client.ts'
import { startReceiver } from '../support/receiver.ts'
import { tiny } from '../support/tiny.ts'
import {
  type BrowserService,
  browserTest,
  choose,
  heading,
  inNumbers,
  open,
  startBrowserService,
  type Visit,
} from './support.ts'

let service: BrowserService
let receiver: Awaited<ReturnType<typeof startReceiver>>
before(async () => {
  if (browserTest.skip) return
  receiver = await startReceiver((_, response) => void response.end('noted, thanks'))
  service = await startBrowserService('settings', { TUNERY_WEBHOOK_ALLOW: `127.0.0.1/32:${receiver.port}` })
})
after(async () => {
  await service?.stop()
  receiver?.stop()
})

const tuneryOf = (apiKey: string) => new Tunery({ baseUrl: `${service.address}/v1`, apiKey, maxRetries: 0 })
const secretOf = (page: Page, title: string) =>
  page.getByRole('dialog', { name: title }).getByTestId('secret').innerText()

/** A browser profile of its own, signed in by a link that the command line made. */
async function visitAs(email?: string): Promise<Visit> {
  const { link } = service.folder.tunery('sign-in-link', ...(email ? ['--email', email] : []))
  const visit = await service.visit({ signedIn: false })
  await visit.page.goto(inNumbers(link!))
  await heading(visit.page, 'Welcome to Tunery')
  return visit
}

test('a webhook is added, tested, looked at and redelivered; what arrives is signed', browserTest, async () => {
  const { page, complaints } = await service.visit()
  await open(page, '/settings/webhooks')
  await page.getByRole('button', { name: 'Add webhook' }).click()
  const form = page.getByRole('dialog', { name: 'Add webhook' })
  // The address of the database of some neighbour is refused at its field, and stays to be corrected.
  await form.getByLabel('Endpoint URL').fill('http://127.0.0.1:1/hook')
  await form.getByRole('button', { name: 'Add webhook' }).click()
  const refusal = form.getByText('TUNERY_WEBHOOK_ALLOW')
  await refusal.waitFor()
  // A corrected form is sent however soon after its refusal.
  for (const port of [2, 1]) {
    const [url, button] = [form.getByLabel('Endpoint URL'), form.getByRole('button', { name: 'Add webhook' })]
    const refused = page.waitForResponse((response) => response.request().postData()?.includes(`:${port}/`) ?? false)
    await url.fill(`http://127.0.0.1:${port}/hook`)
    await button.evaluate((element: HTMLElement) => element.click())
    assert.equal((await refused).status(), 400)
    await refusal.waitFor()
  }
  assert.equal(await form.getByLabel('Endpoint URL').inputValue(), 'http://127.0.0.1:1/hook')
  complaints.length = 0
  await form.getByLabel('Endpoint URL').fill(receiver.url)
  await form.getByRole('button', { name: 'Add webhook' }).click()
  const secret = await secretOf(page, 'Signing secret')
  await page.getByRole('button', { name: 'Done' }).click()

  await page.getByRole('table', { name: 'Webhooks' }).getByRole('button', { name: receiver.url }).click()
  const dialog = page.getByRole('dialog', { name: 'Webhook' })
  await dialog.getByText('No deliveries yet').waitFor()
  await dialog.getByRole('button', { name: 'Send test event' }).click()
  const delivery = dialog.getByRole('table', { name: 'Deliveries' }).getByRole('row', { name: /delivered/ })
  await delivery.first().waitFor()
  await delivery.first().getByRole('button').click()
  const details = dialog.getByRole('region', { name: 'Delivery' })
  await details.getByText('answered 200').waitFor()
  await details.getByText('noted, thanks').waitFor()
  await details.getByRole('button', { name: 'Redeliver' }).click()
  await until('the second delivery', () => receiver.received.length === 2)
  await delivery.nth(1).waitFor()
  await details.getByText('answered 200').waitFor()
  const [first, second, ...others] = receiver.received
  assert.deepEqual(others, [])
  assert.equal(second!.headers['webhook-id'], first!.headers['webhook-id'], 'the same event')
  assert.equal(second!.body, first!.body)
  for (const { body, headers } of [first!, second!])
    await verifyWebhook(body, headers as Record<string, string>, secret)
  assert.deepEqual(complaints, [])
})

test('an invited viewer sees the account and may change nothing; another role and a removal reach them', {
  ...browserTest,
}, async () => {
  await tuneryOf(service.key).datasets.upload(colourRows(8), { name: 'colours of all' })
  const { page } = await service.visit()
  await open(page, '/settings/members')
  await page.getByRole('button', { name: 'Invite member' }).click()
  const form = page.getByRole('dialog', { name: 'Invite member' })
  await form.getByLabel('Name').fill('Vera')
  await form.getByLabel('Email').fill('vera@example.com')
  await choose(form, 'Role', /^Viewer/)
  await form.getByRole('button', { name: 'Create invite link' }).click()
  const link = await secretOf(page, 'Invite link')
  await page.getByRole('button', { name: 'Done' }).click()
  await page.getByRole('table', { name: 'Pending invitations' }).getByText('vera@example.com').waitFor()

  const { page: theirs } = await service.visit({ signedIn: false })
  await theirs.goto(link)
  await heading(theirs, 'Invitation')
  await theirs.getByLabel('Password', { exact: true }).fill('a sentence that Vera knows')
  await theirs.getByRole('button', { name: 'Join' }).click()
  await heading(theirs, 'Home')
  await open(theirs, '/datasets')
  await theirs.getByRole('link', { name: 'colours of all' }).waitFor()
  const creates = /^(New job|Train|Create|Add|Invite|Import|Deploy|New evaluation|New export|Export|Delete|Rename)\b/
  for (const address of ['/', '/datasets', '/jobs', '/models', '/deployments', '/evaluations', '/exports']) {
    await open(theirs, address)
    for (const role of ['button', 'link'] as const)
      assert.deepEqual(
        await theirs.getByRole('main').getByRole(role, { name: creates }).allInnerTexts(),
        [],
        `${role} at ${address}`,
      )
  }
  for (const section of ['webhooks', 'audit']) {
    await open(theirs, `/settings/${section}`)
    await theirs.getByText('No access').waitFor()
  }
  await open(theirs, '/settings/members')
  await theirs.getByRole('cell', { name: 'vera@example.com' }).waitFor()
  assert.equal(await theirs.getByRole('button', { name: /Invite|Remove/ }).count(), 0)
  await open(theirs, '/playground')
  await theirs.getByText('No access').waitFor()
  await open(theirs, '/jobs/new')
  await theirs.getByText('No permission to train').waitFor()
  assert.equal(await theirs.getByRole('link', { name: 'Operator' }).count(), 0)

  await open(page, '/settings/members')
  await choose(page, 'Role of Vera', /^Member/)
  await page.getByRole('combobox', { name: 'Role of Vera' }).getByText('Member').waitFor()
  await open(theirs, '/jobs/new')
  await theirs.getByRole('button', { name: 'Start job' }).waitFor()

  await page.getByRole('button', { name: 'Remove Vera' }).click()
  await page.getByRole('alertdialog').getByRole('button', { name: 'Remove member' }).click()
  await page.getByRole('row', { name: /Vera/ }).waitFor({ state: 'detached' })
  await theirs.goto('/datasets')
  await heading(theirs, 'Sign in')
})

test(
  "a person of another account sees none of the first account's things, by list or by address",
  browserTest,
  async () => {
    const tunery = tuneryOf(service.key)
    const dataset = await tunery.datasets.upload(colourRows(8), { name: 'nobody else reads this' })
    await tunery.deployments.create({ model: tiny, name: 'not-for-others' })
    const config = { method: 'lora', training_config: { epochs: 1, batch_size: 8 } } as const
    const job = await tunery.jobs.create({ model_id: tiny, dataset_id: dataset.id, name: 'not for others', config })
    const evaluation = await tunery.evaluations.create({
      model: tiny,
      dataset: dataset.id,
      name: 'not for others either',
      graders: [{ type: 'regex', name: 'any', pattern: '.' }],
      rows: 2,
      sampling: { max_tokens: 4 },
    })
    service.folder.tunery('accounts', 'create', '--name', 'Elsewhere', '--email', 'eve@example.com')

    const { page } = await visitAs('eve@example.com')
    const hidden = /nobody else|not-for-others|not for others|colours|Vera/
    const lists = ['datasets', 'jobs', 'models', 'deployments', 'evaluations', 'exports', 'jobs/new', 'playground']
    const settings = ['keys', 'members', 'webhooks', 'usage', 'audit', 'sessions'].map((name) => `settings/${name}`)
    for (const address of ['', ...lists, ...settings]) {
      await open(page, `/${address}`)
      assert.doesNotMatch(await page.getByRole('main').innerText(), hidden, address)
    }
    const theirs = [
      'deployments/not-for-others',
      `datasets/${dataset.id}`,
      `jobs/${job.id}`,
      `evaluations/${evaluation.id}`,
    ]
    for (const address of theirs) {
      await page.goto(`/${address}`)
      await page
        .getByRole('main')
        .getByText(/^(There is no |Dataset not found)/)
        .first()
        .waitFor()
    }
  },
)

test(
  'sessions are listed and ended, one or all others, and those that ended have to sign in',
  browserTest,
  async () => {
    const { page } = await service.visit()
    const first = await visitAs()
    const second = await visitAs()
    const third = await visitAs()
    await open(page, '/settings/sessions')
    const table = page.getByRole('table', { name: 'Sessions' })
    const rows = table.getByRole('row').filter({ hasText: 'Chrome on Linux' })
    assert.equal(await rows.count(), 4)
    assert.equal(await rows.filter({ hasText: 'current' }).getByRole('button', { name: 'Sign out' }).count(), 0)
    await rows.getByRole('button', { name: 'Sign out' }).first().click()
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 3)
    const signedIn = async () => {
      const cookies = await Promise.all(
        [first, second, third].map(({ page: each }) => each.evaluate(() => fetch('/v1/session').then((r) => r.status))),
      )
      return cookies.filter((status) => status === 200).length
    }
    assert.equal(await signedIn(), 2)
    await page.getByRole('button', { name: 'Sign out all others' }).click()
    await page.getByRole('alertdialog').getByRole('button', { name: 'Sign out all others' }).click()
    await page.getByText('2 sessions ended').first().waitFor()
    assert.equal(await signedIn(), 0)
    await third.page.goto('/jobs')
    await heading(third.page, 'Sign in')
    await page.reload()
    await rows.filter({ hasText: 'current' }).waitFor()
  },
)
