import { Page } from '../../ui/layout.tsx'

export default function ApiReference() {
  return <Page title="API reference">{null}</Page>
}
