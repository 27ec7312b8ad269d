// What the columns of a file are, where their names do not tell.
import { useState } from 'react'
import type { Columns } from '../../../sdk/index.ts'
import { Select } from '../../ui/choices.tsx'
import { Field, Form, FormButtons } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Segments } from '../../ui/toggles.tsx'

type Kind = 'answers' | 'pairs' | 'conversations'
const kinds = [
  { value: 'answers', label: 'Prompts and answers' },
  { value: 'pairs', label: 'Two answers each' },
  { value: 'conversations', label: 'Conversations' },
] as const

type Name = 'messages' | 'tools' | 'system' | 'prompt' | 'input' | 'completion' | 'chosen' | 'rejected'
interface Role {
  name: Name
  label: string
  help?: string
  optional?: boolean | undefined
}
const prompt: Role = { name: 'prompt', label: 'Prompt', help: 'What the model is asked.' }
const context: Role[] = [
  { name: 'system', label: 'System message', optional: true },
  { name: 'input', label: 'Input', help: 'Put behind the prompt, after a blank line.', optional: true },
]
const roles: Record<Kind, Role[]> = {
  answers: [prompt, { name: 'completion', label: 'Answer', help: 'What the model learns to answer.' }, ...context],
  pairs: [prompt, { name: 'chosen', label: 'Better answer' }, { name: 'rejected', label: 'Worse answer' }, ...context],
  conversations: [
    { name: 'messages', label: 'Messages', help: 'A list of messages with role and content, as JSON.' },
    { name: 'tools', label: 'Tools', optional: true },
  ],
}
const none = ''

/**
 * The fields of the first row of JSON lines, if none of them has a name that is read; the service reads tables.
 */
export async function unknownColumns(file: File): Promise<string[] | undefined> {
  const line = (await file.slice(0, 65_536).text()).trimStart().split('\n', 1)[0]!
  if (!line.startsWith('{')) return undefined
  try {
    const names = Object.keys(JSON.parse(line))
    const known = ['messages', 'chosen', 'preferred_output', 'completion', 'output', 'answer']
    return names.some((name) => known.includes(name)) ? undefined : names
  } catch {
    return undefined
  }
}

/** Asks which column is what, and passes on what was chosen. */
export function ColumnsDialog({
  name,
  columns,
  open,
  onOpenChange,
  onMapped,
}: {
  /** The file's name. */
  name: string
  columns: readonly string[]
  open: boolean
  onOpenChange: (open: boolean) => void
  onMapped: (chosen: Columns) => void
}) {
  const [kind, setKind] = useState<Kind>('answers')
  const [chosen, setChosen] = useState<Columns>({})
  const [tried, setTried] = useState(false)
  const choices = columns.map((column) => ({ value: column, label: column }))
  const missing = roles[kind].filter((role) => !role.optional && !chosen[role.name])
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title="Map columns"
      description={`Say what the columns of ${name} hold. Columns that you leave out are not used.`}
    >
      <Form
        onSubmit={() => {
          setTried(true)
          if (missing.length > 0) return
          const columns: Columns = {}
          for (const { name } of roles[kind]) if (chosen[name]) columns[name] = chosen[name]
          onOpenChange(false)
          onMapped(columns)
        }}
      >
        <Segments<Kind> label="What a row is" value={kind} onChange={setKind} choices={kinds} />
        <div className="grid gap-4 sm:grid-cols-2">
          {roles[kind].map((role) => (
            <Field
              key={role.name}
              label={role.label}
              optional={role.optional}
              help={role.help}
              error={tried && missing.includes(role) && 'Choose a column.'}
            >
              <Select
                value={chosen[role.name] ?? none}
                {...(role.optional && { placeholder: 'None' })}
                onChange={(column) => setChosen({ ...chosen, [role.name]: column })}
                choices={role.optional ? [{ value: none, label: 'None' }, ...choices] : choices}
              />
            </Field>
          ))}
        </div>
        <FormButtons onCancel={() => onOpenChange(false)} busy={false}>
          Upload with these columns
        </FormButtons>
      </Form>
    </Dialog>
  )
}
