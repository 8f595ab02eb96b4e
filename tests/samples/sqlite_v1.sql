PRAGMA application_id = 1919902834;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE attempt (
        thread_id TEXT NOT NULL,
        attempt_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        goal_id TEXT,
        origin_thread_id TEXT,
        report INTEGER NOT NULL,
        usage TEXT NOT NULL,
        PRIMARY KEY (thread_id, attempt_id)
    ) WITHOUT ROWID;
INSERT INTO "attempt" VALUES('active','a','u','g',NULL,1,'{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}');
INSERT INTO "attempt" VALUES('archived','a','u','g',NULL,1,'{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}');
CREATE TABLE checkpoint (
        thread_id TEXT NOT NULL PRIMARY KEY,
        position INTEGER NOT NULL,
        fold_version INTEGER NOT NULL,
        body BLOB NOT NULL
    );
INSERT INTO "checkpoint" VALUES('active',8,1,X'789C65515B6E833010BCCB7E23F515F5830BF410698456B0051463BBDE751E429CA517E95F2ED65D4850A2F2E51DCFCCCE9811BE826BAA0325EE8387F2A5004F27A998BEA17CBF0EBDD0B020AF05484E9EA11C212B7B2AC02E75DE8E20E7485042664AD540CCD812285F1D14FD4897DFCB0F7DE667FD602A563A32F72CE8E5BF063D1F29C1B42B201CFD12A36F6ECBB77013EC34864396CAB229C342C0151A4243CEC8519101D44ABDC95BDB2575A23AA46651612DFD819E3670C75A6EEA8EEABDC27B3AEB6427AE83E55F7B4897081B0B3F1FEE0DB5AED23B1AF0E1A10FE8B22AB73E3BB7B392796E535A266C7ADF2E0151B47794ABA12E48144392D9E2B1F0AA8F299842C29EACE55B01B5028EC4FADC50930741B7021B8D19738A81AD0FA32A3484FAB64159F396567FC634FD018ACBC196');
INSERT INTO "checkpoint" VALUES('archived',8,1,X'789C65515B6EC3300CBB8BBE03EC55EC2317D821BA2210622D09EAD89E25B72B8A9C6517D95F2F3629698315CB97459314E99CE1237AD71C28F31003D44F1504FA9286E913EAD7EB30088D0BF25C81941C18EA3314654F15D8A5CEDB33C82911D45098723312337604CA570745DFF2E5E7F24DEFE5513F98AA958ECC030B06F9AFC1C047CA30ED2A88C7B0C418DC6DF9166E829DC6F0C8D25836655808B8426374E48D9C141941ADD49B82B55D52676A63768B0A73DB0F07720F1BF8C35BEEDA9EDABDC27B3AE964276EA335589B489F099DC59F0FF7965A59053D8D78F7D807F445B5DB50BCDF59D13237AA2D17BA21744B4814ED9EE46AA92B32A59865B6B82FBDEA538EA690B8276BFA5241AB8027B14637D4E451D0AFC04663A69253646BC4A80A0DA1BE5D54D6BCA5D31F324DBFCA4AC32A');
CREATE TABLE entry (
        thread INTEGER NOT NULL,
        position INTEGER NOT NULL,
        record_id TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (thread, position),
        UNIQUE (thread, record_id)
    );
INSERT INTO "entry" VALUES(1,0,'','{"type":"thread","metadata":{"thread_id":"active","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:05.678901Z","labels":{"team":"blue"}}}');
INSERT INTO "entry" VALUES(1,1,'active/1','{"type":"event","event_id":"active/1","timestamp":"2026-01-02T03:04:06.678901Z","source":"thread","event":{"type":"turn.started","provider":"p","model":"m"},"seq":1,"thread_id":"active","turn_id":"u"}');
INSERT INTO "entry" VALUES(1,2,'active/2','{"type":"event","event_id":"active/2","timestamp":"2026-01-02T03:04:07.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"user_message","text":"Grüße\u0000"}},"seq":2,"thread_id":"active","turn_id":"u"}');
INSERT INTO "entry" VALUES(1,3,'active/3','{"type":"event","event_id":"active/3","timestamp":"2026-01-02T03:04:08.678901Z","source":"thread","event":{"type":"usage.recorded","attempt_id":"a","report":1,"turn_id":"u","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"purpose":"sampling","goal_id":"g"},"thread_id":"active","turn_id":"u"}');
INSERT INTO "entry" VALUES(1,4,'active/4','{"type":"extension_state","record_id":"active/4","extension_id":"check","key":"k","scope":{"type":"thread","thread_id":"active"},"schema_version":1,"value":[null]}');
INSERT INTO "entry" VALUES(1,5,'active/5','{"type":"event","event_id":"active/5","timestamp":"2026-01-02T03:04:10.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"assistant_message","text":"answer"}},"seq":3,"thread_id":"active","turn_id":"u"}');
INSERT INTO "entry" VALUES(1,6,'active/6','{"type":"item_event","event_id":"active/6","timestamp":"2026-01-02T03:04:11.678901Z","thread_id":"active","turn_id":"u","event":{"type":"item_delta","item_id":"u-message","delta":{"type":"agent_message_text","delta":"x"}},"seq":1}');
INSERT INTO "entry" VALUES(1,7,'active/7','{"type":"event","event_id":"active/7","timestamp":"2026-01-02T03:04:12.678901Z","source":"thread","event":{"type":"thread.metadata_changed","labels":{"team":"red"}},"seq":4,"thread_id":"active"}');
INSERT INTO "entry" VALUES(1,8,'active/8','{"type":"event","event_id":"active/8","timestamp":"2026-01-02T03:04:13.678901Z","source":"thread","event":{"type":"turn.completed","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"finish_reason":"stop"},"seq":5,"thread_id":"active","turn_id":"u"}');
INSERT INTO "entry" VALUES(2,0,'','{"type":"thread","metadata":{"thread_id":"archived","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:05.678901Z","labels":{"team":"blue"}}}');
INSERT INTO "entry" VALUES(2,1,'archived/1','{"type":"event","event_id":"archived/1","timestamp":"2026-01-02T03:04:06.678901Z","source":"thread","event":{"type":"turn.started","provider":"p","model":"m"},"seq":1,"thread_id":"archived","turn_id":"u"}');
INSERT INTO "entry" VALUES(2,2,'archived/2','{"type":"event","event_id":"archived/2","timestamp":"2026-01-02T03:04:07.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"user_message","text":"Grüße\u0000"}},"seq":2,"thread_id":"archived","turn_id":"u"}');
INSERT INTO "entry" VALUES(2,3,'archived/3','{"type":"event","event_id":"archived/3","timestamp":"2026-01-02T03:04:08.678901Z","source":"thread","event":{"type":"usage.recorded","attempt_id":"a","report":1,"turn_id":"u","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"purpose":"sampling","goal_id":"g"},"thread_id":"archived","turn_id":"u"}');
INSERT INTO "entry" VALUES(2,4,'archived/4','{"type":"extension_state","record_id":"archived/4","extension_id":"check","key":"k","scope":{"type":"thread","thread_id":"archived"},"schema_version":1,"value":[null]}');
INSERT INTO "entry" VALUES(2,5,'archived/5','{"type":"event","event_id":"archived/5","timestamp":"2026-01-02T03:04:10.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"assistant_message","text":"answer"}},"seq":3,"thread_id":"archived","turn_id":"u"}');
INSERT INTO "entry" VALUES(2,6,'archived/6','{"type":"item_event","event_id":"archived/6","timestamp":"2026-01-02T03:04:11.678901Z","thread_id":"archived","turn_id":"u","event":{"type":"item_delta","item_id":"u-message","delta":{"type":"agent_message_text","delta":"x"}},"seq":1}');
INSERT INTO "entry" VALUES(2,7,'archived/7','{"type":"event","event_id":"archived/7","timestamp":"2026-01-02T03:04:12.678901Z","source":"thread","event":{"type":"thread.metadata_changed","labels":{"team":"red"}},"seq":4,"thread_id":"archived"}');
INSERT INTO "entry" VALUES(2,8,'archived/8','{"type":"event","event_id":"archived/8","timestamp":"2026-01-02T03:04:13.678901Z","source":"thread","event":{"type":"turn.completed","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"finish_reason":"stop"},"seq":5,"thread_id":"archived","turn_id":"u"}');
CREATE TABLE label (
        thread_id TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (thread_id, key)
    ) WITHOUT ROWID;
INSERT INTO "label" VALUES('active','team','red');
INSERT INTO "label" VALUES('archived','team','red');
CREATE TABLE thread (
        number INTEGER PRIMARY KEY,
        thread_id TEXT NOT NULL UNIQUE,
        metadata TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        archived_at TEXT,
        last_position INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        last_item_seq INTEGER NOT NULL
    );
INSERT INTO "thread" VALUES(1,'active','{"thread_id":"active","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:13.678901Z","title":"Grüße\u0000","labels":{"team":"red"},"message_count":2,"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"usage_tiers":[[null,1]]}','2026-01-02T03:04:13.678901Z',NULL,8,5,1);
INSERT INTO "thread" VALUES(2,'archived','{"thread_id":"archived","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:13.678901Z","title":"Grüße\u0000","labels":{"team":"red"},"message_count":2,"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"usage_tiers":[[null,1]]}','2026-01-02T03:04:13.678901Z','2026-11-30T13:46:02.490630Z',8,5,1);
CREATE INDEX thread_listing ON thread (archived_at, updated_at, thread_id);
CREATE VIEW record (thread_id, position, record_id, kind, turn_id, body) AS
        SELECT
            thread.thread_id,
            entry.position,
            entry.record_id,
            CASE json_extract(entry.body, '$.type')
                WHEN 'event' THEN json_extract(entry.body, '$.event.type')
                ELSE json_extract(entry.body, '$.type')
            END,
            coalesce(json_extract(entry.body, '$.turn_id'), json_extract(entry.body, '$.scope.turn_id')),
            entry.body
        FROM thread JOIN entry ON entry.thread = thread.number
        WHERE entry.position > 0;
CREATE INDEX label_pair ON label (key, value);
COMMIT;
