// Ways to bring examples: a file, pasted rows, a dataset of the Hugging Face Hub.
import { type ReactNode, useState } from 'react'
import type { DatasetFields } from '../../../sdk/index.ts'
import { Button } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { Disclosure, FileDrop } from '../../ui/disclosure.tsx'
import { Field, Form, Input, Textarea } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'

type Way = 'file' | 'paste' | 'hub'
const ways = [
  { value: 'file', label: 'File' },
  { value: 'paste', label: 'Paste' },
  { value: 'hub', label: 'Hugging Face Hub' },
] as const

export type Send = (file: File, fields?: DatasetFields) => void

export function UploadCard({ send }: { send: Send }) {
  const [way, setWay] = useState<Way>('file')
  const forms: Record<Way, ReactNode> = {
    file: (
      <FileDrop
        title="Drop a file of examples here"
        note={
          'JSONL, CSV or parquet, or a zip of a dataset saved by Hugging Face datasets. A large file goes up in ' +
          'parts: if the connection breaks, choose it again to continue.'
        }
        onFile={(file) => send(file)}
      />
    ),
    paste: <Paste send={send} />,
    hub: <Hub send={send} />,
  }
  return (
    <Card
      title="Add a dataset"
      actions={<Segments<Way> label="Where the examples come from" value={way} onChange={setWay} choices={ways} />}
    >
      {forms[way]}
      <div className="mt-3">
        <Disclosure quiet summary="What a row looks like">
          <Formats />
        </Disclosure>
      </div>
    </Card>
  )
}

/** The same text is the same file, by its time too: sent again meanwhile it is the same upload. */
function fileOf(text: string, name: string): File {
  let hash = 0
  for (let at = 0; at < text.length; at++) hash = (Math.imul(hash, 31) + text.charCodeAt(at)) >>> 0
  return new File([text], name, { lastModified: hash })
}

const draftKey = 'tunery.datasets.paste'

function Paste({ send }: { send: Send }) {
  const [name, setName] = useState('')
  const [rows, setRows] = useState(() => sessionStorage.getItem(draftKey) ?? '')
  const [tried, setTried] = useState(false)
  const write = (next: string) => {
    setRows(next)
    try {
      sessionStorage.setItem(draftKey, next)
    } catch {
      // Too much to keep through a refresh.
    }
  }
  const title = name.trim() || 'Pasted rows'
  const text = rows.trim()
  const missing = text === '' ? 'Paste at least one row.' : undefined
  return (
    <Form
      onSubmit={() => {
        setTried(true)
        if (missing) return
        // A table begins with its header; rows of JSON begin with a brace.
        const format = /^[[{]/.test(text) ? undefined : ('csv' as const)
        send(fileOf(`${text}\n`, title), { name: title, ...(format && { format }) })
        sessionStorage.removeItem(draftKey)
      }}
    >
      <Field
        label="Rows"
        error={tried && missing}
        help={
          'One JSON object a line, or a table in CSV with a header. What you paste stays in this tab through a ' +
          'refresh.'
        }
      >
        <Textarea
          mono
          rows={6}
          value={rows}
          onChange={({ target }) => write(target.value)}
          spellCheck={false}
          placeholder='{"messages":[{"role":"user","content":"…"},{"role":"assistant","content":"…"}]}'
        />
      </Field>
      <div className="flex flex-wrap items-end gap-3">
        <Field label="Name" optional className="min-w-48 flex-1">
          <Input value={name} maxLength={200} onChange={({ target }) => setName(target.value)} />
        </Field>
        <Button variant="primary" type="submit">
          Add the rows
        </Button>
      </div>
    </Form>
  )
}

const repositoryPattern = /^(?!.*\.\.)[\w.-]{1,96}(\/[\w.-]{1,96})?$/

/** `owner/name`, also of an address that was copied from the Hub. */
const repositoryOf = (text: string) =>
  text
    .trim()
    .replace(/^https?:\/\/[^/]+\/(datasets\/)?/, '')
    .replace(/[?#].*/s, '')
    .split('/')
    .slice(0, 2)
    .join('/')

function Hub({ send }: { send: Send }) {
  const [form, setForm] = useState({ repo: '', split: 'train', config: '', revision: '', token: '' })
  const [tried, setTried] = useState(false)
  const set = (name: keyof typeof form) => ({
    value: form[name],
    onChange: ({ target }: { target: { value: string } }) => setForm({ ...form, [name]: target.value }),
  })
  const repo_id = repositoryOf(form.repo)
  const { split, config, revision, token } = form
  const source = JSON.stringify({
    repo_id,
    split: split.trim() || 'train',
    ...(config.trim() && { config: config.trim() }),
    ...(revision.trim() && { revision: revision.trim() }),
  })
  const wrong = repositoryPattern.test(repo_id) ? undefined : 'Write it as owner/name, as the Hub does.'
  return (
    <Form
      onSubmit={() => {
        setTried(true)
        if (wrong) return
        send(fileOf(source, `${repo_id}.json`), {
          name: `${repo_id} (${split.trim() || 'train'})`,
          format: 'huggingface',
          ...(token.trim() && { hf_token: token.trim() }),
        })
      }}
    >
      <div className="grid gap-4 sm:grid-cols-2">
        <Field
          label="Dataset"
          error={tried && wrong}
          help="Its name or its address. Only data files are fetched, no code."
        >
          <Input {...set('repo')} placeholder="owner/name" spellCheck={false} autoCapitalize="off" />
        </Field>
        <Field label="Split" help="The part to fetch, as the dataset’s page on the Hub names it.">
          <Input {...set('split')} spellCheck={false} autoCapitalize="off" />
        </Field>
      </div>
      <Disclosure quiet summary="Subset, revision, private datasets">
        <div className="grid gap-4 sm:grid-cols-3">
          <Field label="Subset" optional help="The `config` of a dataset that has several.">
            <Input {...set('config')} spellCheck={false} />
          </Field>
          <Field label="Revision" optional help="A branch, a tag or a commit.">
            <Input {...set('revision')} spellCheck={false} />
          </Field>
          <Field label="Your Hub token" optional help="For a private dataset. Used once, never stored.">
            <Input {...set('token')} type="password" autoComplete="off" />
          </Field>
        </div>
      </Disclosure>
      <div>
        <Button variant="primary" type="submit">
          Fetch the dataset
        </Button>
      </div>
    </Form>
  )
}

const question = '"I forgot my password."'
const conversation =
  `{"messages":[{"role":"system","content":"Triage the ticket."},{"role":"user","content":${question}},` +
  '{"role":"assistant","content":"product: sync, urgency: low"}]}'
const table = `system,prompt,completion
Triage the ticket.,I forgot my password.,"product: sync, urgency: low"`
const preference = `{"prompt":${question},"chosen":"Use the link on the sign-in page.","rejected":"Too bad."}`

function Formats() {
  return (
    <div className="grid gap-3">
      <p className="text-muted">
        The model learns what the assistant says; the other messages are what it reads before. Each row is an object on
        a line of its own.
      </p>
      <CodeBlock title="Conversations, JSONL" code={conversation} wrap />
      <CodeBlock title="The same as a table, CSV" code={table} wrap />
      <CodeBlock title="Preferences: which of two answers is better" code={preference} wrap />
    </div>
  )
}
